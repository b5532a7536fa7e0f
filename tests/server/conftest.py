"""One server in this process, its operator and its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.server.parties import Operator, Party, initial, settings

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@pytest.fixture
def http(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a fresh server; what the server raises reaches the client as it would over a socket."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # starlette's advice on which http library its client should use
        from fastapi.testclient import TestClient

    from server.app import create_app

    with TestClient(create_app(settings(tmp_path), initial()), raise_server_exceptions=False) as client:
        yield client


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
