"""What a contribution must look like before it is counted. Everything else is refused by name of the field."""

import math
from collections.abc import Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError
from device_sdk.privacy.clipping import layer_bounds
from device_sdk.privacy.contributions import weight_units
from device_sdk.wire.delta_codec import LEVELS, SCALE, decode, group_sizes
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan
from server.aggregation.weights_file import parse_tensors

LOCAL_LIMIT = 1 << 40
"""Largest magnitude of a locally noised count, in fixed-point units: far above any honest draw, far below overflow."""

NOISE_DEVIATIONS = 6.0
"""How far the norm of honest noise may lie above its expectation, in units of the noise of one value."""

ROUNDING_DEVIATIONS = 10.0
"""How far stochastic rounding may carry a norm above its expectation, in levels: independent choices of a range r pass
their median by t with a chance of at most 2 exp(-t^2 / 4 r^2), here one in 3 * 10^10 (Talagrand)."""


def validate_counts(counts: Mapping[int, int], words: int, plan: MarginalPlan) -> None:
    """Check one marginal report, over a public list of so many words. Raises ProtocolError. Under ``local`` trust the
    counts carry the device's own noise, so any word may appear with either sign. A share of ``distributed`` noise hides
    nothing by itself, so a report that shows its counts is refused."""
    if plan.trust == "distributed":
        raise ProtocolError("counts: found counts in the clear; this round takes them under secure aggregation only")
    largest = LOCAL_LIMIT if plan.mode == "paper" else weight_units(plan)
    for word, count in counts.items():
        if not 0 <= word < words:
            raise ProtocolError(f"counts: word id {word} is outside the word list; expected 0 to {words - 1}")
        if plan.trust == "local":
            if abs(count) > LOCAL_LIMIT:
                raise ProtocolError(f"counts[{word}]: magnitude {count} is larger than any noised count can be")
        elif not 0 < count <= largest:
            raise ProtocolError(f"counts[{word}]: found {count}, expected 1 to {largest} units")
    if plan.trust == "central" and plan.mode == "bounded" and len(counts) > plan.max_words:
        raise ProtocolError(f"counts: found {len(counts)} words, expected at most {plan.max_words}")


def validate_words(words: Sequence[str], listed: Set[str], plan: WordPlan) -> None:
    """Check one report of words, each of which is a word and there once. listed: the public list, as far as it is known
    here. Raises ProtocolError, which names no word."""
    if len(words) > plan.max_words:
        raise ProtocolError(f"words: found {len(words)}, expected at most {plan.max_words}")
    if any(word in listed for word in words):
        raise ProtocolError("words: found one that is on the public list; expected others")


def read_delta(
    content: bytes, shapes: Mapping[str, tuple[int, ...]], plan: DeltaPlan
) -> dict[str, NDArray[np.float32]]:
    """The float32 arrays of a report's body, decoded and checked. Raises ProtocolError naming the tensor."""
    tensors = parse_tensors(content)
    delta = decode(tensors, plan.encoding, plan.scale_per)
    validate_delta(delta, shapes, plan)
    if plan.encoding == "int8":
        largest = norm_bound(plan, sum(map(math.prod, shapes.values()))) / LEVELS
        for name in delta:
            if (found := float(tensors[SCALE + name].max())) > largest:
                beyond = f"found {found:.6g}, expected at most {largest:.6g}: no value is larger"
                raise ProtocolError(f"{SCALE}{name}: {beyond}")
    return delta


def validate_delta(
    delta: Mapping[str, NDArray[np.float32]], shapes: Mapping[str, tuple[int, ...]], plan: DeltaPlan
) -> float:
    """Check names, shapes, values and norms of one decoded delta, each layer's too where the plan bounds layers.
    Returns its L2 norm, computed in float64. Raises ProtocolError naming the parameter."""
    validate_shapes(delta, shapes)
    groups = group_sizes(shapes, plan.scale_per)
    if plan.clipping != "global":
        for name, clip_norm in layer_bounds(shapes, plan.clip_norm, plan.clipping).items():
            bound = norm_bound(plan, math.prod(shapes[name]), groups[name], clip_norm)
            _check_norm(name, delta_norm({name: delta[name]}), bound)
    whole = delta_norm(delta)
    _check_norm("delta", whole, norm_bound(plan, sum(map(math.prod, shapes.values())), max(groups.values(), default=1)))
    return whole


def _check_norm(name: str, norm: float, bound: float) -> None:
    if norm > bound:
        raise ProtocolError(f"{name}: found L2 norm {norm:.6g}, expected at most {bound:.6g}; clip before sending")


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


def norm_bound(plan: DeltaPlan, values: int, group: int = 1, clip_norm: float | None = None) -> float:
    """Largest norm an honest delta can have: the clip bound, plus the norm of its own noise, as rounding may leave it.
    values: how many there are; group: the most that share an int8 scale; clip_norm: of a layer, else the plan's.
    Rounding adds at most scale^2 / 4 to the expected square of a value, and a group's scale is its largest value over
    127: the bound is reached where one value of a group is all that the group has."""
    clipped = plan.clip_norm if clip_norm is None else clip_norm
    noise = plan.noise_stddev * (math.sqrt(values) + NOISE_DEVIATIONS) if plan.noise_stddev else 0.0
    match plan.encoding:
        case "float32":
            rounding = 1.0
        case "float16":
            rounding = 1.0 + 2.0**-10 + math.sqrt(values) * 2.0**-38
        case "int8":
            rounding = math.sqrt(1.0 + group / (4 * LEVELS**2)) + ROUNDING_DEVIATIONS / LEVELS
    return (clipped + noise) * rounding * (1 + 1e-4)
