"""Bounding the L2 norm of a delta: as a whole, or every parameter array on its own (Pelikan et al. 2023, definition 3).

K: parameter arrays, the paper's layers. Whichever way, the norm of the whole ends at most C, which is all that privacy
accounting asks of clipping. Arrays are only ever scaled down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError

if TYPE_CHECKING:  # learning starts without pydantic
    from device_sdk.wire.messages import Clipping

Arrays = Mapping[str, NDArray[np.float32]]


def layer_bounds(shapes: Mapping[str, tuple[int, ...]], clip_norm: float, clipping: Clipping) -> dict[str, float]:
    """C_i of every array: C / sqrt(K) for ``uniform``, C sqrt(D_i / sum_j D_j) for ``dim`` with D_i its values; C for
    ``global``, where no array has a bound of its own. Raises PrivacyError for a C that is not positive."""
    if not (math.isfinite(clip_norm) and clip_norm > 0):
        raise PrivacyError(f"clip_norm: found {clip_norm}, expected a positive number")
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    total = sum(sizes.values())
    if clipping == "uniform":
        return dict.fromkeys(sizes, clip_norm / math.sqrt(max(1, len(sizes))))
    if clipping == "dim":
        return {name: clip_norm * math.sqrt(size / total) for name, size in sizes.items()}
    return dict.fromkeys(sizes, clip_norm)


def clip(arrays: Arrays, clip_norm: float, clipping: Clipping) -> tuple[dict[str, NDArray[np.float32]], float]:
    """(arrays within their bounds, L2 norm of the whole before, in float64). Raises PrivacyError: no positive bound."""
    bounds = layer_bounds({name: array.shape for name, array in arrays.items()}, clip_norm, clipping)
    norms = {name: math.sqrt(float(np.square(each, dtype=np.float64).sum())) for name, each in arrays.items()}
    whole = math.sqrt(sum(norm * norm for norm in norms.values()))
    if clipping == "global":
        norms = dict.fromkeys(norms, whole)
    scales = {name: np.float32(bounds[name] / norm) for name, norm in norms.items() if not norm <= bounds[name]}
    return {name: each * scales[name] if name in scales else each for name, each in arrays.items()}, whole
