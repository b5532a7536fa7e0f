"""A folder with a round that is about to be aggregated, and the round's id."""

from pathlib import Path

import pytest

from tests.server.releases.rounds import closing


@pytest.fixture(scope="package")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("closing")
    return folder, closing(folder)
