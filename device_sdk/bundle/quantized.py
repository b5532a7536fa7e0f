"""int8 weights, made on the device from the float32 ones whenever these change: what is learned is never rounded away.

Every matrix is symmetric and per output channel: row n of W is ``scale[n] * int8[n]``, scale[n] = max |W[n]| / levels.
They lie in a buffer of their own, transposed as integer products want them, which the ``.int8`` graphs read beside the
float32 one (see :mod:`device_sdk.bundle.weights`); biases, tables and normalization stay float32."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.streaming import AnyArchitecture, StreamingArchitecture

QUANTIZED_FILE = "weights.int8"
LEVELS = 127
COARSE_LEVELS = 63
"""For processors that add two products of bytes in 16 bits, which 255 * 63 * 2 fits and 255 * 127 * 2 does not."""
EMBEDDING = "predictor.embedding"
EMBEDDING_ZERO = 128
"""Embeddings are inputs of a product, not its weights, so they are unsigned: 128 stands for 0."""


class Matrix(NamedTuple):
    """Where a quantized matrix lies. shape: [K, N], inputs by outputs; transposed: whether the weights
    are [N, K]. values: offset in bytes of its int8 (or, for embeddings, uint8) [K, N]; scale: of its float32 scales,
    ``scales`` of them: N, or 1 for embeddings."""

    shape: tuple[int, int]
    values: int
    scale: int
    scales: int
    transposed: bool = True


def layout(architecture: AnyArchitecture, names: Collection[str] | None = None) -> dict[str, Matrix]:
    """Name -> place in the buffer, of every matrix: all scales first, so that these are aligned, then all values.
    names: of the parameters whose matrices the buffer holds; None is all."""
    shapes = {
        name: shape
        for name, shape in architecture.parameter_shapes().items()
        if len(shape) == 2 and (names is None or name in names)
    }
    # In a graph that was brought along, a matrix stands as its product takes it: inputs by outputs.
    brought = {name for name, _ in architecture.encoder} if isinstance(architecture, StreamingArchitecture) else set()
    counts = {name: 1 if name == EMBEDDING else shape[name in brought] for name, shape in shapes.items()}
    slots: dict[str, Matrix] = {}
    scale, values = 0, 4 * sum(counts.values())
    for name, (rows, columns) in shapes.items():
        transposed = name != EMBEDDING and name not in brought
        shape = (columns, rows) if transposed else (rows, columns)
        slots[name] = Matrix(shape, values, scale, counts[name], transposed)
        scale += 4 * counts[name]
        values += rows * columns
    return slots


def quantize(
    architecture: AnyArchitecture,
    weights: Mapping[str, NDArray[np.float32]],
    levels: int = LEVELS,
    names: Collection[str] | None = None,
) -> bytes:
    """The int8 buffer of finite float32 weights, in :func:`layout` of ``names``. levels: the largest integer's size."""
    slots = layout(architecture, names)
    buffer = bytearray(max(slot.values + prod(slot.shape) for slot in slots.values()))
    for name, slot in slots.items():
        weight = weights[name] if slot.transposed or slot.scales == 1 else weights[name].T
        scale = np.frombuffer(buffer, np.float32, slot.scales, slot.scale)
        scale[:] = scales_of(weight.reshape(slot.scales, -1), levels)
        steps = weight / scale[:, None]
        np.rint(steps, out=steps)
        if name == EMBEDDING:
            steps += EMBEDDING_ZERO
            np.frombuffer(buffer, np.uint8, prod(slot.shape), slot.values).reshape(slot.shape)[:] = steps
        else:
            np.frombuffer(buffer, np.int8, prod(slot.shape), slot.values).reshape(slot.shape)[:] = steps.T
    return bytes(buffer)


def scales_of(rows: NDArray[np.float32], levels: int = LEVELS) -> NDArray[np.float32]:
    """[N, K] -> [N]: what one step of an integer is worth in each row, so that its largest value takes ``levels``."""
    peak = np.maximum(rows.max(axis=1), -rows.min(axis=1))
    # A row of zeros has any scale; one whose scale would underflow is zero to a product of float32, too.
    return np.where(peak > np.finfo(np.float32).tiny * levels, peak / np.float32(levels), np.float32(1.0))
