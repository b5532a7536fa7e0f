"""Server optimizers (Gao et al. 2022, Pelikan et al. 2023): how a mean delta moves the model.

The pseudo-gradient is minus the mean delta: plain SGD with learning rate 1 moves the base onto the local models' mean.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.plans.round import OptimizerSettings

Array = NDArray[np.float32]
Arrays = dict[str, Array]


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """step: updates so far; first, second: moments by parameter name (empty where the kind keeps none)."""

    kind: str
    step: int
    first: Arrays
    second: Arrays


def init(settings: OptimizerSettings, shapes: Mapping[str, tuple[int, ...]]) -> OptimizerState:
    """The state before the first update."""
    kept = shapes if settings.kind != "sgd" else {}
    moments = ({name: np.zeros(shape, np.float32) for name, shape in kept.items()} for _ in range(2))
    return OptimizerState(settings.kind, 0, *moments)


def learning_rate(settings: OptimizerSettings, step: int) -> float:
    """Of the update number ``step``, the first being 1."""
    schedule = settings.schedule
    share = min(1.0, step / schedule.warmup) if schedule.warmup else 1.0
    if step > schedule.start:
        times = (step - schedule.start) / schedule.transition
        share *= max(schedule.least, schedule.decay**times)
    return settings.learning_rate * share


def apply(
    settings: OptimizerSettings, state: OptimizerState, base: Mapping[str, Array], mean_delta: Mapping[str, Array]
) -> tuple[Arrays, OptimizerState]:
    """One update: the new weights, constants of ``base`` that have no delta as they are, and the new state. A state of
    another kind is replaced by a fresh one."""
    if state.kind != settings.kind:
        state = init(settings, {name: values.shape for name, values in mean_delta.items()})
    step = state.step + 1
    rate = np.float32(learning_rate(settings, step))
    weights: Arrays = {name: np.array(values, np.float32) for name, values in base.items()}
    first: Arrays = {}
    second: Arrays = {}
    for name, delta in mean_delta.items():
        change = -delta
        if settings.kind != "sgd":
            moments = state.first[name], state.second[name]
            change, first[name], second[name] = _change(settings, step, weights[name], change, *moments)
        weights[name] -= rate * change
    return weights, OptimizerState(settings.kind, step, first, second)


def state_to_arrays(state: OptimizerState) -> tuple[Arrays, dict[str, str]]:
    """Arrays and metadata to store beside the model."""
    moments = {"first": state.first, "second": state.second}
    arrays = {f"{kind}.{name}": values for kind, held in moments.items() for name, values in held.items()}
    return arrays, {"kind": state.kind, "step": str(state.step)}


def state_from_arrays(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> OptimizerState:
    """What :func:`state_to_arrays` stored."""
    moments: dict[str, Arrays] = {"first": {}, "second": {}}
    for key, values in arrays.items():
        kind, _, name = key.partition(".")
        moments[kind][name] = np.asarray(values)
    return OptimizerState(metadata["kind"], int(metadata["step"]), moments["first"], moments["second"])


def update_norm(new: Mapping[str, Array], old: Mapping[str, Array]) -> float:
    """L2 distance of two weight sets, in float64."""
    return _norm(new[name] - old[name] for name in new)


def _change(
    settings: OptimizerSettings, step: int, weights: Array, gradient: Array, first: Array, second: Array
) -> tuple[Array, Array, Array]:
    """(what the learning rate is to be multiplied with, the moments after) of one parameter, by Adam or LAMB."""
    first = _average(first, gradient, settings.momentum)
    second = _average(second, np.square(gradient), settings.second_momentum)
    unbiased = first / np.float32(1 - settings.momentum**step)
    root = np.sqrt(second / np.float32(1 - settings.second_momentum**step))
    change = unbiased / (root + np.float32(settings.epsilon))
    if settings.kind == "lamb":
        change = change + np.float32(settings.weight_decay) * weights
        lengths = _norm([weights]), _norm([change])
        # How long a parameter is in units of its change, where neither is zero.
        change = np.float32(lengths[0] / lengths[1] if min(lengths) > 0 else 1.0) * change
    return change, first, second


def _norm(arrays: Iterable[Array]) -> float:
    return math.sqrt(sum(float(np.square(values, dtype=np.float64).sum()) for values in arrays))


def _average(old: Array, new: Array, keep: float) -> Array:
    return np.float32(keep) * old + np.float32(1 - keep) * new
