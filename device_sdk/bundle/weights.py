"""Weights as data: names, shapes, finite values, and one packed buffer that every graph reads.

The packed buffer holds all parameters and constants as little-endian float32 in the architecture's canonical order.
Graphs declare their weights as external data in a file called :data:`PACKED_FILE` at the offsets of :func:`layout`;
that file never exists: a session is given the buffer from memory, so one graph serves every version of the weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite, prod

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.errors import BundleError

PACKED_FILE = "weights"
FLOAT_BYTES = 4
LARGEST = 1e6
"""No trained weight comes near this size; below it, no sum of products in the graphs leaves float32."""

Float = NDArray[np.float32]
Slot = tuple[int, tuple[int, ...]]


def layout(architecture: AnyArchitecture) -> dict[str, Slot]:
    """Name -> (offset in bytes, shape) in the packed buffer: parameters in canonical order, then constants."""
    slots: dict[str, Slot] = {}
    offset = 0
    for name, shape in (architecture.parameter_shapes() | architecture.constant_shapes()).items():
        slots[name] = (offset, shape)
        offset += FLOAT_BYTES * prod(shape)
    return slots


def architecture_digest(architecture: AnyArchitecture) -> str:
    """Hex sha256 of the sizes: stands in every graph's metadata, so that a graph of another shape is refused."""
    text = json.dumps(asdict(architecture), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check(architecture: AnyArchitecture, weights: Mapping[str, NDArray[np.generic]], source: str) -> None:
    """Raise :class:`BundleError` unless ``weights`` has exactly the architecture's names, shapes, float32 values, all
    finite and at most :data:`LARGEST` in size. source: the file or sender, named in the message."""
    expected = architecture.parameter_shapes() | architecture.constant_shapes()
    for name in sorted(weights.keys() - expected.keys()):
        raise BundleError(f"{source}: found an unknown tensor {name!r}; expected the tensors of the architecture only")
    for name, shape in expected.items():
        if name not in weights:
            raise BundleError(f"{source}: tensor {name!r} is missing, expected shape {list(shape)}")
        value = weights[name]
        if value.dtype != np.float32:
            raise BundleError(f"{source}: tensor {name!r} is {value.dtype}, expected float32")
        if value.shape != shape:
            raise BundleError(f"{source}: tensor {name!r} has shape {list(value.shape)}, expected {list(shape)}")
        # min and max see every NaN and infinity.
        low, high = float(value.min()), float(value.max())
        if not (isfinite(low) and isfinite(high)):
            raise BundleError(f"{source}: tensor {name!r} holds NaN or infinity; take the bundle from its source again")
        if max(-low, high) > LARGEST:
            raise BundleError(
                f"{source}: tensor {name!r} holds values from {low:.3g} to {high:.3g}, expected at most {LARGEST:g} in "
                "size; take the bundle from its source again"
            )


def pack(architecture: AnyArchitecture, weights: Mapping[str, NDArray[np.generic]]) -> bytes:
    """The packed buffer of weights that :func:`check` accepts."""
    names = layout(architecture)
    return b"".join(np.ascontiguousarray(weights[name], dtype="<f4").tobytes() for name in names)


def unpack(architecture: AnyArchitecture, packed: bytes) -> dict[str, Float]:
    """Read-only views into the packed buffer, without a copy."""
    return {
        name: np.frombuffer(packed, np.float32, prod(shape), offset).reshape(shape)
        for name, (offset, shape) in layout(architecture).items()
    }


def halved(weights: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    """The same in float16 where that holds every value of a tensor exactly; :func:`read` restores it."""
    with np.errstate(over="ignore"):
        half = {name: value.astype(np.float16) for name, value in weights.items()}
    return {name: half[name] if (half[name] == value).all() else value for name, value in weights.items()}


def serialize(weights: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Safetensors bytes; the same weights give the same bytes."""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(weights[name]) for name in sorted(weights)})


def read(content: bytes, source: str) -> dict[str, NDArray[np.generic]]:
    """Tensors of a safetensors file's bytes, float16 restored to float32. Raises :class:`BundleError` where it is
    damaged."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise BundleError(f"{source}: not a readable safetensors file ({error})") from error
    return {name: each.astype(np.float32) if each.dtype == np.float16 else each for name, each in tensors.items()}
