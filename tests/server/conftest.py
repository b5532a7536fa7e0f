"""One server in this process, its operator and its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.databases import PLACES, placed
from tests.server.parties import Operator, Party, serving

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@pytest.fixture
def http(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a fresh server."""
    with serving(tmp_path) as client:
        yield client


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a database of either kind."""
    with placed(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def operator(http: TestClient) -> Operator:
    return Operator(http)


@pytest.fixture
def device(http: TestClient) -> Party:
    return Party(http).enrol()


@pytest.fixture
def devices(http: TestClient) -> Callable[[int], list[Party]]:
    def make(count: int) -> list[Party]:
        return [Party(http).enrol() for _ in range(count)]

    return make
