"""int8 weights: where they lie, and how far they are from the float32 ones."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.bundle.quantized import COARSE_LEVELS, EMBEDDING_ZERO, LEVELS, layout, quantize

SMALLEST = Architecture(1, 1, 1, 1, 1, 1, 2, mel_bins=1, subsampling_factor=1)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.floats(-(2.0**-120), 2.0**-120, width=32)


def dequantized(architecture: Architecture, content: bytes, name: str) -> np.ndarray:
    """A parameter in its own layout, from its integers and scales."""
    slot = layout(architecture)[name]
    scale = np.frombuffer(content, np.float32, slot.scales, slot.scale).astype(np.float64)
    embedding = slot.scales == 1
    values = np.frombuffer(content, np.uint8 if embedding else np.int8, prod(slot.shape), slot.values)
    steps = values.reshape(slot.shape).astype(np.float64)
    return (steps - EMBEDDING_ZERO) * scale if embedding else (steps * scale).T


@pytest.mark.parametrize("architecture", [SMALLEST, PRESETS["tiny"], PRESETS["small"]])
def test_slots_cover_the_buffer_without_overlap(architecture: Architecture) -> None:
    slots = layout(architecture)
    spans = [(slot.scale, slot.scale + 4 * slot.scales) for slot in slots.values()]
    spans += [(slot.values, slot.values + prod(slot.shape)) for slot in slots.values()]
    spans.sort()
    assert spans[0][0] == 0 and all(before[1] == after[0] for before, after in pairwise(spans))
    assert all(slot.scale % 4 == 0 for slot in slots.values())
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    weights = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert len(quantize(architecture, weights)) == spans[-1][1]
    assert slots.keys() == {name for name, shape in architecture.parameter_shapes().items() if len(shape) == 2}


@pytest.mark.parametrize("levels", [LEVELS, COARSE_LEVELS])
@given(data=st.data())
def test_every_value_is_within_half_a_step_of_its_channel(levels: int, data: st.DataObject) -> None:
    sizes = Architecture(1, 2, 1, 2, 3, 2, 4, mel_bins=3, subsampling_factor=1)
    shapes = sizes.parameter_shapes()
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for name in ("encoder.0.W", "predictor.embedding"):
        weights[name] = data.draw(arrays(np.float32, shapes[name], elements=FLOATS))
        found = dequantized(sizes, quantize(sizes, weights, levels), name)
        peak = np.abs(weights[name].astype(np.float64)).max(axis=None if name == "predictor.embedding" else 1)
        smallest = levels * np.finfo(np.float32).tiny  # channels that never reach it are taken for zero
        bound = np.where(peak <= 1.001 * smallest, smallest, 0.5001 * peak / levels)
        assert (np.abs(found - weights[name]) <= (bound if bound.ndim == 0 else bound[:, None])).all()
