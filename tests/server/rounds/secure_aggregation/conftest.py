"""A real server process whose devices add up their counts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.databases import placed
from tests.server.rounds.secure_aggregation.processes import Fleet


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.postgres, pytest.mark.slow])])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with placed(request.param, tmp_path) as place:
        found = Fleet(tmp_path, place)
        yield found
        found.close()
