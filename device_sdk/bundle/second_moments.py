"""How large the gradient of each parameter usually is, measured once on public speech and shipped with the weights.

For a parameter with axes a, b, ... the second moment of its gradient is kept as one vector an axis: its mean over all
other axes. That is a few kilobytes for millions of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import weights as weight_files
from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.errors import BundleError

SECOND_MOMENTS_FILE = "second_moments.safetensors"

SecondMoments = Mapping[str, tuple[NDArray[np.float32], ...]]
"""Parameter name -> for each axis, the mean squared gradient at each index of it, over all other axes: float32."""


def moments(squares: Mapping[str, NDArray[np.float64]]) -> dict[str, tuple[NDArray[np.float32], ...]]:
    """Second moments from mean squared gradients. squares: parameter name -> float64 array of the parameter's shape."""
    return {
        name: tuple(
            value.mean(axis=tuple(other for other in range(value.ndim) if other != axis)).astype(np.float32)
            for axis in range(value.ndim)
        )
        for name, value in squares.items()
    }


def serialize(second_moments: SecondMoments) -> bytes:
    """safetensors bytes: one tensor ``NAME/AXIS`` an axis."""
    return weight_files.serialize(
        {f"{name}/{axis}": vector for name, vectors in second_moments.items() for axis, vector in enumerate(vectors)}
    )


def read(content: bytes, architecture: AnyArchitecture, source: str) -> SecondMoments:
    """The second moments of the architecture's parameters. Raises :class:`BundleError` that names the tensor."""
    tensors = weight_files.read(content, source)
    expected = {
        f"{name}/{axis}": size
        for name, shape in architecture.parameter_shapes().items()
        for axis, size in enumerate(shape)
    }
    if tensors.keys() != expected.keys():
        different = sorted(tensors.keys() ^ expected.keys())
        raise BundleError(f"{source}: tensors {different[:4]} are missing or unknown, expected the architecture's")
    for name, size in expected.items():
        vector = tensors[name]
        if vector.dtype != np.float32 or vector.shape != (size,):
            found = f"{vector.dtype} {list(vector.shape)}"
            raise BundleError(f"{source}: tensor {name!r} is {found}, expected float32 [{size}]")
        low, high = float(vector.min()), float(vector.max())
        if not (math.isfinite(low) and math.isfinite(high) and low >= 0.0 and high > 0.0):
            raise BundleError(f"{source}: tensor {name!r} holds {low:.3g} to {high:.3g}, expected squares, not all 0")
    return {
        name: tuple(np.asarray(tensors[f"{name}/{axis}"], np.float32) for axis in range(len(shape)))
        for name, shape in architecture.parameter_shapes().items()
    }
