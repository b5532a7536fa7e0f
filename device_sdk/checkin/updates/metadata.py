"""What a device is to have by metadata of The Update Framework, checked by python-tuf and kept in the device's state.

The library works on a folder of plain files: one of its own is made for the moment, from what the state holds, and
whatever was verified goes back into the state, also where a later step was refused. What was seen once is thus never
taken back: older timestamps, snapshots and targets stay refused after a restart."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from device_sdk.errors import CheckInError, ConfigurationError, MissingExtraError
from device_sdk.wire.rollout import MILLIONTHS, arm_of

if TYPE_CHECKING:
    from tuf.ngclient import FetcherInterface

    from device_sdk.checkin.client import Client
    from device_sdk.state import Store

ROUTE = "/v1/updates/"
METADATA_SECONDS = 30.0
"""A file of metadata is there within this time, or refused: nobody keeps a device busy with an endless answer."""
_TABLE = "updates"
_ROLES = ("timestamp.json", "snapshot.json", "targets.json")

Targets = Mapping[str, tuple[int, dict[str, str], Any]]
"""name -> (length, hashes, custom), from metadata that was verified."""


@dataclass(frozen=True, slots=True)
class Target:
    """One file. name: as messages have it; version: that it is of; length: bytes, at most; sha256: as announced."""

    name: str
    version: str
    length: int
    sha256: str

    def check(self, content: bytes) -> None:
        """CheckInError: these are other bytes."""
        found = sha256(content).hexdigest()
        if found != self.sha256:
            raise CheckInError(f"{self.name}: sha256: found {found}, expected {self.sha256}; the download is dropped")


@dataclass(frozen=True, slots=True)
class Release:
    """What is current. words_digest: of the word list that the marginals are over."""

    model: Target
    teacher: Target | None
    marginals: Target
    words_digest: str


def check_trusted_root(trusted_root: bytes) -> None:
    """Cheap, so that opening a device stays quick; the signatures are checked with the first check-in.
    MissingExtraError: the library that checks them is not installed. ConfigurationError: no metadata of a root."""
    if find_spec("tuf") is None:
        install = "pip install 'idiolect[secure-updates]'"
        raise MissingExtraError(f"trusted_root: signed updates need tuf; install it with: {install}")
    _root_version(trusted_root)


def refresh(client: Client, store: Store, trusted_root: bytes, device_id: str) -> Release:
    """What this device is to have by metadata that ``trusted_root``, and every root that it hands over to, vouches for.
    CheckInError: what the server says is older than what was seen, expired, inconsistent, signed by other keys or by
    too few, or not to be had. ConfigurationError: ``trusted_root`` is no root that signs itself."""
    from tuf.api.exceptions import DownloadError, RepositoryError
    from tuf.api.metadata import Metadata
    from tuf.api.metadata import Targets as Signed
    from tuf.ngclient import Updater

    first = _root_version(trusted_root)
    with tempfile.TemporaryDirectory(prefix="idiolect-updates-") as name:
        folder = Path(name)
        _lay_out(store, folder, first)
        try:
            updater = Updater(name, ROUTE, fetcher=cast("FetcherInterface", _Fetcher(client)), bootstrap=trusted_root)
        except RepositoryError as error:
            raise ConfigurationError(f"trusted_root: {error}; expected a root.json that signs itself") from error
        try:
            updater.refresh()
        except (RepositoryError, DownloadError, OSError, ValueError) as error:
            raise CheckInError(f"{client.url}{ROUTE}: {type(error).__name__}: {error}") from error
        finally:
            _keep(store, folder, first)
        verified = Metadata[Signed].from_bytes((folder / "targets.json").read_bytes()).signed
    targets = {name: (file.length, file.hashes, file.custom) for name, file in verified.targets.items()}
    return release_of(targets, device_id)


class _Fetcher:
    """The part of tuf's FetcherInterface that metadata needs, over the check-in's own connections."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def download_bytes(self, url: str, max_length: int) -> bytes:
        from tuf.api.exceptions import DownloadError, DownloadHTTPError

        from device_sdk.checkin.connection import Refused

        try:
            return self._client.download(url, max_length, METADATA_SECONDS)
        except Refused as error:
            raise DownloadHTTPError(str(error), error.status) from error
        except CheckInError as error:
            raise DownloadError(str(error)) from error


def _lay_out(store: Store, folder: Path, first: int) -> None:
    (folder / "root_history").mkdir()
    for name in store.names(_TABLE):
        number, _, role = name.partition(".")
        if name in _ROLES:
            (folder / name).write_bytes(store.get(_TABLE, name) or b"")
        elif role == "root.json" and int(number) > first:
            (folder / "root_history" / name).write_bytes(store.get(_TABLE, name) or b"")


def _keep(store: Store, folder: Path, first: int) -> None:
    """Everything that is verified. Roots up to the app's own are not needed any more."""
    roots = (path for path in (folder / "root_history").glob("*.root.json") if int(path.name.split(".")[0]) > first)
    verified = {path.name: path.read_bytes() for path in (*map(folder.joinpath, _ROLES), *roots) if path.is_file()}
    with store.transaction():
        for name in store.names(_TABLE):
            if name not in verified:
                store.delete(_TABLE, name)
        for name, content in verified.items():
            if store.get(_TABLE, name) != content:
                store.put(_TABLE, name, content)


def _root_version(trusted_root: bytes) -> int:
    """ConfigurationError: no metadata of a root."""
    try:
        signed = json.loads(trusted_root)["signed"]
        kind, version = signed["_type"], signed["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        found = type(error).__name__
        raise ConfigurationError(f"trusted_root: cannot be read ({found}); expected a root.json's bytes") from None
    if kind != "root" or not isinstance(version, int):
        raise ConfigurationError(f"trusted_root: found metadata of role {kind!r}, expected root")
    return version


def release_of(targets: Targets, device_id: str = "") -> Release:
    """device_id: this device's at the server: it gets the rollout's model where it belongs to the share of the devices
    that is to have it. CheckInError: the targets do not say which model and which marginals are current."""
    current = _current(targets, "models/")
    model = _in_rollout(targets, device_id) or current
    marginals = _current(targets, "marginals/")
    teacher = targets[model.name][2].get("teacher")
    labels = None if teacher is None else _target(targets, f"models/{teacher}.safetensors")
    return Release(model, labels, marginals, str(targets[marginals.name][2].get("words_digest")))


def _in_rollout(targets: Targets, device_id: str) -> Target | None:
    """The model that goes to some devices first, where this one is among them."""
    for name, custom in _marked(targets, "models/"):
        share = custom.get("rollout")  # in millionths
        if isinstance(share, int) and device_id:
            target = _target(targets, name)
            if arm_of(device_id, target.version, share / MILLIONTHS) == "rollout":
                return target
    return None


def _marked(targets: Targets, folder: str) -> list[tuple[str, dict[str, Any]]]:
    found = sorted((name, custom) for name, (_, _, custom) in targets.items() if isinstance(custom, dict))
    return [(name, custom) for name, custom in found if name.startswith(folder)]


def _current(targets: Targets, folder: str) -> Target:
    current = [name for name, custom in _marked(targets, folder) if custom.get("current") is True]
    if len(current) != 1:
        raise CheckInError(f"targets: found {len(current)} targets {folder}* that are current, expected one")
    return _target(targets, current[0])


def _target(targets: Targets, name: str) -> Target:
    """``name`` is ``folder/version.ending``."""
    if name not in targets:
        raise CheckInError(f"targets: {name} is not among them")
    length, hashes, _ = targets[name]
    if "sha256" not in hashes:
        raise CheckInError(f"{name}: found hashes {sorted(hashes)}, expected sha256")
    return Target(name, name.partition("/")[2].rpartition(".")[0], length, hashes["sha256"])
