"""Weights from a server: as the difference to what the device has where there is one, and from where they broke off."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.checkin.partial import Partial
from device_sdk.checkin.refusals import Refused
from device_sdk.checkin.updates import difference
from device_sdk.errors import BundleError, CheckInError, ProtocolError
from device_sdk.model_state import with_published
from device_sdk.state import records

if TYPE_CHECKING:
    from device_sdk.checkin.client import Client
    from device_sdk.model_state import ModelState
    from device_sdk.state import Store

__all__ = ["Base", "Wanted", "base_of", "fetch", "install", "largest", "patience", "teacher_of"]

_HEADER = 1 << 20
"""Bytes that a weights file may have beside its values."""
_UNFIT = "unfit"
_PATIENCE = 60.0
_SLOWEST = 16_384
"""Seconds that every download may take, and bytes a second that it brings at least beyond these."""


@dataclass(frozen=True, slots=True)
class Base:
    """Weights that the device has, and that the server may know by their version."""

    version: str
    weights: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """sha256: hexadecimal, as announced or signed; length: bytes, at most. check: raises CheckInError for other bytes
    than these."""

    version: str
    sha256: str
    length: int
    check: Callable[[bytes], None]


def largest(architecture: Architecture) -> int:
    """Bytes of a weights file, at most."""
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    return _HEADER + 4 * sum(math.prod(shape) for shape in shapes.values())


def patience(length: int) -> float:
    """Seconds that a download of so many bytes may take: nobody keeps a device busy with an endless answer."""
    return _PATIENCE + length / _SLOWEST


def base_of(model_state: ModelState) -> Base:
    return Base(model_state.base.version, model_state.base.weights)


def teacher_of(model_state: ModelState) -> Base:
    """The server's teacher as it is here; before there is one, the base, which the first teacher is near to."""
    held = records.read_published_teacher(model_state.store)
    if held is None:
        return base_of(model_state)
    return Base(held.version, with_published(model_state.packaged, held).weights)


def fetch(client: Client, store: Store, wanted: Wanted, base: Base | None) -> bytes:
    """The bytes of the safetensors file that is wanted; what came of it before is gone on with.

    CheckInError: not to be had, or other bytes than wanted. What came of a line that broke is kept. BundleError: these
    very bytes were found unfit for this device before; they are not fetched again.
    """
    if records.read_text(store, _UNFIT) == wanted.sha256:
        raise BundleError(f"model {wanted.version}: was found unfit for this device before; it is not fetched again")
    path = f"/v1/models/{quote(wanted.version, safe='')}"
    partial = Partial(store)
    if base is not None and partial.path != path:
        found = _by_difference(client, partial, f"{path}/from/{quote(base.version, safe='')}", wanted, base)
        if found is not None:
            return found
    content = client.download(path, wanted.length, patience(wanted.length), partial)
    partial.drop()
    wanted.check(content)
    return content


def install(model_state: ModelState, version: str, content: bytes, keep: float) -> None:
    """Make it the base; the share ``keep`` of what was learned here stays. BundleError: unfit, and the old one stays;
    it is remembered by its digest, so that what no device can use costs each of them one download."""
    try:
        model_state.adopt(records.Published(version, content), keep)
    except BundleError:
        records.write_text(model_state.store, _UNFIT, sha256(content).hexdigest())
        raise


def _by_difference(client: Client, partial: Partial, path: str, wanted: Wanted, base: Base) -> bytes | None:
    """None: there is none, or it leads elsewhere; all of the file is to be taken then."""
    try:
        found = client.download(path, wanted.length, patience(wanted.length), partial)
    except Refused:
        partial.drop()
        return None
    partial.drop()
    try:
        content = difference.apply(base.weights, found, wanted.length)
        wanted.check(content)
    except (ProtocolError, CheckInError):
        return None
    return content
