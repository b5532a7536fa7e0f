"""Metadata of The Update Framework, checked by python-tuf and kept in the device's state.

The library works on a folder of plain files: one of its own is made for the moment, from what the state holds, and
whatever was verified goes back into the state, also where a later step was refused. What was seen once is thus never
taken back: older timestamps, snapshots and targets stay refused after a restart.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, cast

from device_sdk.checkin.refusals import Refused
from device_sdk.checkin.updates.release import Release, release_of
from device_sdk.checkin.updates.trust import root_version
from device_sdk.errors import CheckInError, ConfigurationError

if TYPE_CHECKING:
    from tuf.ngclient import FetcherInterface

    from device_sdk.checkin.client import Client
    from device_sdk.state import Store

__all__ = ["METADATA_SECONDS", "ROUTE", "refresh"]

ROUTE = "/v1/updates/"
METADATA_SECONDS = 30.0
"""A file of metadata is there within this time, or refused: nobody keeps a device busy with an endless answer."""

_TABLE = "updates"
_ROLES = ("timestamp.json", "snapshot.json", "targets.json")


def refresh(client: Client, store: Store, trusted_root: bytes, device_id: str = "") -> Release:
    """What this device is to have by metadata that ``trusted_root``, and every root that it hands over to, vouches for.

    CheckInError: what the server says is older than what was seen, expired, inconsistent, signed by other keys or by
    too few, or not to be had. ConfigurationError: ``trusted_root`` is no root that signs itself.
    """
    from tuf.api.exceptions import DownloadError, RepositoryError
    from tuf.api.metadata import Metadata, Targets
    from tuf.ngclient import Updater

    first = root_version(trusted_root)
    with tempfile.TemporaryDirectory(prefix="idiolect-updates-") as name:
        folder = Path(name)
        _lay_out(store, folder, first)
        fetcher = cast("FetcherInterface", _Fetcher(client))
        try:
            updater = Updater(name, ROUTE, fetcher=fetcher, bootstrap=trusted_root)
        except RepositoryError as error:
            raise ConfigurationError(f"trusted_root: {error}; expected a root.json that signs itself") from error
        try:
            updater.refresh()
        except (RepositoryError, DownloadError, OSError, ValueError) as error:
            raise CheckInError(f"{client.url}{ROUTE}: {type(error).__name__}: {error}") from error
        finally:
            _keep(store, folder, first)
        verified = Metadata[Targets].from_bytes((folder / "targets.json").read_bytes()).signed
    found = {name: (file.length, file.hashes, file.custom) for name, file in verified.targets.items()}
    return release_of(found, device_id)


class _Fetcher:
    """The part of tuf's FetcherInterface that metadata needs, over the check-in's own connections."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def download_bytes(self, url: str, max_length: int) -> bytes:
        from tuf.api.exceptions import DownloadError, DownloadHTTPError

        try:
            return self._client.download(url, max_length, METADATA_SECONDS)
        except Refused as error:
            raise DownloadHTTPError(str(error), error.status) from error
        except CheckInError as error:
            raise DownloadError(str(error)) from error


def _lay_out(store: Store, folder: Path, first: int) -> None:
    (folder / "root_history").mkdir()
    for name in store.names(_TABLE):
        content = store.get(_TABLE, name)
        number, _, role = name.partition(".")
        if content is not None and name in _ROLES:
            (folder / name).write_bytes(content)
        elif content is not None and role == "root.json" and int(number) > first:
            (folder / "root_history" / name).write_bytes(content)


def _keep(store: Store, folder: Path, first: int) -> None:
    """Everything that is verified. Roots up to the app's own are not needed any more."""
    held = {name: folder / name for name in _ROLES if (folder / name).is_file()}
    for path in (folder / "root_history").glob("*.root.json"):
        if int(path.name.partition(".")[0]) > first:
            held[path.name] = path
    with store.transaction():
        for name in store.names(_TABLE):
            if name not in held:
                store.delete(_TABLE, name)
        for name, path in held.items():
            content = path.read_bytes()
            if store.get(_TABLE, name) != content:
                store.put(_TABLE, name, content)
