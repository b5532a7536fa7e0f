"""Weights from a server: as the difference to what the device has where there is one, and from where they broke off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from device_sdk.checkin.client import Partial
from device_sdk.checkin.connection import Refused
from device_sdk.checkin.updates import difference
from device_sdk.errors import BundleError, CheckInError, ProtocolError
from device_sdk.state import records

if TYPE_CHECKING:
    from device_sdk.checkin.client import Client
    from device_sdk.checkin.updates.metadata import Target
    from device_sdk.model_state import ModelState
    from device_sdk.state import Store

__all__ = ["Base", "fetch", "install", "patience"]

_UNFIT = "unfit"
_PATIENCE = 60.0
_SLOWEST = 16_384
"""Seconds that every download may take, and bytes a second that it brings at least beyond these."""


@dataclass(frozen=True, slots=True)
class Base:
    """Weights that the device has, and that the server may know by their version."""

    version: str
    weights: Mapping[str, NDArray[np.float32]]


def patience(length: int) -> float:
    """Seconds that a download of so many bytes may take: nobody keeps a device busy with an endless answer."""
    return _PATIENCE + length / _SLOWEST


def fetch(client: Client, store: Store, target: Target, base: Base) -> bytes:
    """The bytes of the safetensors file ``target``; what came of it before is gone on with.

    CheckInError: not to be had, or other bytes than these. What came of a line that broke is kept. BundleError: these
    very bytes were found unfit for this device before; they are not fetched again."""
    if records.read_text(store, _UNFIT) == target.sha256:
        raise BundleError(f"model {target.version}: was found unfit for this device before; it is not fetched again")
    path = f"/v1/models/{quote(target.version, safe='')}"
    partial = Partial(store)
    if partial.path != path:
        content = _by_difference(client, partial, f"{path}/from/{quote(base.version, safe='')}", target, base)
        if content is not None:
            return content
    content = client.download(path, target.length, patience(target.length), partial)
    partial.drop()
    target.check(content)
    return content


def install(model_state: ModelState, version: str, content: bytes, keep: float) -> None:
    """Make it the base; the share ``keep`` of what was learned here stays. BundleError: unfit, and the old one stays;
    it is remembered by its digest, so that what no device can use costs each of them one download."""
    try:
        model_state.adopt(records.Published(version, content), keep)
    except BundleError:
        records.write_text(model_state.store, _UNFIT, sha256(content).hexdigest())
        raise


def _by_difference(client: Client, partial: Partial, path: str, target: Target, base: Base) -> bytes | None:
    """None: there is none, or it leads elsewhere; all of the file is to be taken then."""
    try:
        packed = client.download(path, target.length, patience(target.length), partial)
    except Refused:
        partial.drop()
        return None
    partial.drop()
    try:
        content = difference.apply(base.weights, packed, target.length)
        target.check(content)
    except (ProtocolError, CheckInError):
        return None
    return content
