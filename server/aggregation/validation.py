"""What a contribution must look like before it is counted. Everything else is refused by name of the field."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError
from device_sdk.privacy.contributions import weight_units
from device_sdk.wire.messages import DeltaPlan, MarginalPlan

__all__ = ["delta_norm", "norm_bound", "validate_counts", "validate_delta", "validate_shapes"]

LOCAL_LIMIT = 1 << 40
"""Largest magnitude of a locally noised count, in fixed-point units: far above any honest draw, far below overflow."""

NOISE_DEVIATIONS = 6.0
"""How far the norm of honest noise may lie above its expectation, in units of the noise of one value."""


def validate_counts(counts: Mapping[int, int], words: int, plan: MarginalPlan) -> None:
    """Check one marginal report. words: size of the public word list.

    Under ``central`` trust the bounds are the plan's; under ``local`` trust the counts carry the device's own noise, so
    any word may appear with either sign. Raises ProtocolError.
    """
    for word, count in counts.items():
        if not 0 <= word < words:
            raise ProtocolError(f"counts: word id {word} is outside the word list; expected 0 to {words - 1}")
        if plan.trust == "local":
            if abs(count) > LOCAL_LIMIT:
                raise ProtocolError(f"counts[{word}]: magnitude {count} is larger than any noised count can be")
        elif not 0 < count <= weight_units(plan):
            raise ProtocolError(f"counts[{word}]: found {count}, expected 1 to {weight_units(plan)} units")
    if plan.trust == "central" and len(counts) > plan.max_words:
        raise ProtocolError(f"counts: found {len(counts)} words, expected at most {plan.max_words}")


def validate_delta(
    delta: Mapping[str, NDArray[np.float32]], shapes: Mapping[str, tuple[int, ...]], plan: DeltaPlan
) -> float:
    """Check names, shapes, values and norm of one delta. Returns its L2 norm, computed in float64.

    Raises ProtocolError naming the parameter.
    """
    validate_shapes(delta, shapes)
    norm = delta_norm(delta)
    bound = norm_bound(plan, sum(math.prod(shape) for shape in shapes.values()))
    if norm > bound:
        raise ProtocolError(f"delta: found L2 norm {norm:.6g}, expected at most {bound:.6g}; clip before sending")
    return norm


def validate_shapes(weights: Mapping[str, NDArray[np.float32]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that the names are exactly those expected, the shapes equal and every value finite."""
    for name in sorted(shapes.keys() - weights.keys()):
        raise ProtocolError(f"{name}: missing; expected shape {list(shapes[name])}")
    for name in sorted(weights.keys() - shapes.keys()):
        raise ProtocolError(f"{name[:80]}: not a parameter of this round's model")
    for name, shape in shapes.items():
        if weights[name].shape != shape:
            raise ProtocolError(f"{name}: found shape {list(weights[name].shape)}, expected {list(shape)}")
        if not np.isfinite(weights[name]).all():
            raise ProtocolError(f"{name}: holds NaN or infinity; expected finite values")


def delta_norm(delta: Mapping[str, NDArray[np.float32]]) -> float:
    """L2 norm over all parameters, accumulated in float64."""
    return math.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in delta.values()))


def norm_bound(plan: DeltaPlan, values: int) -> float:
    """Largest norm an honest delta can have: the clip bound plus the norm of its own noise, with float32 slack."""
    noise = plan.noise_stddev * (math.sqrt(values) + NOISE_DEVIATIONS) if plan.noise_stddev else 0.0
    return (plan.clip_norm + noise) * (1 + 1e-4)
