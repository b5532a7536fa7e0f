"""A device's store, and a server in this process that devices check in with."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from device_sdk.state import Store
from tests.device_sdk.checkin.site import Site, site
from tests.device_sdk.devices import KEY


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path, KEY)) as opened:
        yield opened


@pytest.fixture
def server(tmp_path: Path, tiny_bundle: Bundle) -> Iterator[Site]:
    with site(tmp_path / "server", tiny_bundle) as found:
        yield found
