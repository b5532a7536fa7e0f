"""How the values of a delta are written: float32 as they are, float16 and int8 with stochastic rounding.

A value x between two neighbouring levels l < x < u becomes u with probability (x - l) / (u - l), else l. The mean of
many deltas is then right however coarse the levels are, where rounding to the nearest would lose whatever is small
beside its tensor's largest value. The choice is drawn from the system's generator: no server can repeat it.

    float32  F32 ``name``
    float16  F16 ``name``, F32 ``scale/name`` [1]: a power of two that takes the largest value to [2^14, 2^15)
    int8     I8  ``name`` in -127..127, F32 ``scale/name`` [G]: the largest value of a group is 127 scales

G: groups of values that share a scale: the tensor, or each of its rows (the first axis of a matrix; a vector is one).
Noise is added before the values are written, so rounding is post-processing: it costs no privacy, and adds at most
scale^2 / 4 to the variance of a value."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError

if TYPE_CHECKING:  # learning starts without pydantic
    from device_sdk.wire.messages import Encoding


LEVELS = 127
"""Largest magnitude of an int8 value."""
SCALE = "scale/"
"""Prefix of the name of a tensor's scales."""

_TOP = 15
"""float16: the largest value of a tensor is brought below 2^15, half of what float16 holds."""
_TINY = 2.0**-14
"""The smallest normal float16; below it levels are 2^-24 apart."""
_BLOCK = 1 << 18
"""Values rounded at once: bounds the memory that randomness and float64 take."""

Arrays = Mapping[str, NDArray[np.float32]]
ScalePer = Literal["tensor", "row"]


def parts(shapes: Mapping[str, tuple[int, ...]], part: str) -> tuple[str, ...]:
    """Names of the parameters that belong to a part, in their order; all of them for one that names and shapes do not
    decide. part: see :data:`device_sdk.bundle.architecture.SUBSETS`."""
    match part:
        case "output":
            return tuple(name for name in shapes if name.startswith(("predictor.", "joiner.")))
        case "acoustic":
            return tuple(name for name in shapes if name.startswith(("encoder.", "joiner.encoder.")))
        case "adapters":
            return tuple(name for name, shape in shapes.items() if len(shape) == 2 and name != "predictor.embedding")
        case "norms":
            return tuple(name for name, shape in shapes.items() if len(shape) == 1)
    return tuple(shapes)


def encode(arrays: Arrays, encoding: Encoding, scale_per: ScalePer = "row") -> dict[str, NDArray[Any]]:
    """The tensors to send for finite float32 ``arrays``; their expectation decodes to the arrays."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        values = np.ascontiguousarray(array, np.float32)
        if encoding == "float32":
            tensors[name] = values
        elif encoding == "float16":
            tensors[name], tensors[SCALE + name] = _to_float16(values)
        else:
            tensors[name], tensors[SCALE + name] = _to_int8(values, scale_per)
    return tensors


def decode(
    tensors: Mapping[str, NDArray[Any]], encoding: Encoding, scale_per: ScalePer = "row"
) -> dict[str, NDArray[np.float32]]:
    """float32 arrays by name. Raises ProtocolError that names the tensor: a wrong type, a scale that is missing, left
    over, of a wrong shape or value, or a value that the encoding does not have."""
    wanted = {"float32": np.float32, "float16": np.float16, "int8": np.int8}[encoding]
    names = [name for name in tensors if encoding == "float32" or not name.startswith(SCALE)]
    found: dict[str, NDArray[np.float32]] = {}
    for name in names:
        values = tensors[name]
        if values.dtype != wanted:
            raise ProtocolError(f"{name[:80]}: found {values.dtype}, expected {np.dtype(wanted)} as the round asks for")
        if values.size == 0:
            shape = list(values.shape)
            raise ProtocolError(f"{name[:80]}: found shape {shape} without a value, expected a parameter's")
        if encoding == "float32":
            found[name] = values
            continue
        scales = _scales(name, tensors, _groups(values.shape, scale_per if encoding == "int8" else "tensor"))
        if encoding == "float16":
            if math.frexp(float(scales[0]))[0] != 0.5:
                raise ProtocolError(f"{SCALE}{name[:80]}: found {scales[0]!r}, expected a power of two")
            with np.errstate(over="ignore", invalid="ignore"):
                found[name] = values.astype(np.float32) * scales[0]
        else:
            if int(values.min()) < -LEVELS:
                raise ProtocolError(f"{name[:80]}: found -128, expected values in -{LEVELS}..{LEVELS}")
            with np.errstate(over="ignore"):  # whoever asks for the values looks for infinity
                grouped = values.reshape(scales.size, -1).astype(np.float32) * scales[:, None]
            found[name] = grouped.reshape(values.shape)
    left = [name for name in tensors if name not in found and name.removeprefix(SCALE) not in found]
    if left:
        raise ProtocolError(f"{left[0][:80]}: a scale without its tensor; expected both")
    return found


def group_sizes(shapes: Mapping[str, tuple[int, ...]], scale_per: ScalePer) -> dict[str, int]:
    """Values of each tensor that share one int8 scale."""
    return {name: math.prod(shape) // _groups(shape, scale_per) for name, shape in shapes.items()}


def _groups(shape: tuple[int, ...], scale_per: ScalePer) -> int:
    return shape[0] if scale_per == "row" and len(shape) > 1 else 1


def _scales(name: str, tensors: Mapping[str, NDArray[Any]], groups: int) -> NDArray[np.float32]:
    scales = tensors.get(SCALE + name)
    if scales is None:
        raise ProtocolError(f"{SCALE}{name[:80]}: missing; expected float32 [{groups}]")
    if scales.dtype != np.float32 or scales.shape != (groups,):
        found = f"{scales.dtype} {list(scales.shape)}"
        raise ProtocolError(f"{SCALE}{name[:80]}: found {found}, expected float32 [{groups}]")
    if not (np.isfinite(scales).all() and (scales >= 0).all()):
        raise ProtocolError(f"{SCALE}{name[:80]}: found a scale that is not a finite number >= 0")
    return scales


def _to_float16(values: NDArray[np.float32]) -> tuple[NDArray[np.float16], NDArray[np.float32]]:
    """The 13 bits that float16 has not are met by 13 random bits: the carry is the rounding, and it is exact."""
    largest = float(np.abs(values).max(initial=0.0))
    # The scale itself must be a normal float32 whatever the values are.
    power = min(126, max(-126, math.frexp(largest)[1] - _TOP)) if largest else 0
    result = np.empty(values.size, np.float16)
    flat = values.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        part = np.ldexp(flat[start : start + _BLOCK], -power)  # exact, but for what is far below 2^-24 now
        random = np.frombuffer(os.urandom(4 * part.size), np.uint32)
        bits = (part.view(np.uint32) + (random & 0x1FFF)) & np.uint32(0xFFFFE000)
        small = part.astype(np.float64) * 2.0**24
        fixed = np.floor(small + random * 2.0**-32) * 2.0**-24
        rounded = np.where(np.abs(part) < _TINY, fixed, bits.view(np.float32))
        result[start : start + part.size] = rounded.astype(np.float16)
    return result.reshape(values.shape), np.array([2.0**power], np.float32)


def _to_int8(values: NDArray[np.float32], scale_per: ScalePer) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    grouped = values.reshape(_groups(values.shape, scale_per), -1)
    largest = np.abs(grouped).max(axis=1, initial=0.0).astype(np.float64)
    scales = (largest / LEVELS).astype(np.float32)
    # Rounded down, a scale would put the largest value above the last level.
    low = scales.astype(np.float64) * LEVELS < largest
    scales[low] = np.nextafter(scales[low], np.float32(np.inf))
    divisors = np.where(scales > 0, scales, 1.0).astype(np.float64)
    result = np.empty(grouped.shape, np.int8)
    rows = max(1, _BLOCK // max(1, grouped.shape[1]))
    for first in range(0, len(grouped), rows):
        for start in range(0, grouped.shape[1], _BLOCK):
            part = grouped[first : first + rows, start : start + _BLOCK]
            random = np.frombuffer(os.urandom(4 * part.size), np.uint32).reshape(part.shape)
            levels = np.floor(part / divisors[first : first + rows, None] + random * 2.0**-32)
            result[first : first + rows, start : start + _BLOCK] = levels
    return result.reshape(values.shape), scales
