"""Server optimizers: how a mean delta moves the model (FedAvg and its adaptive forms, Gao et al. 2022 and Pelikan et
al. 2023).

The pseudo-gradient is minus the mean delta, since a delta is local minus base: plain SGD with learning rate 1 moves
the base onto the mean of the local models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.plans.optimizer import OptimizerSettings, learning_rate

__all__ = [
    "OptimizerState",
    "apply",
    "init",
    "state_from_arrays",
    "state_to_arrays",
    "update_norm",
]

Array = NDArray[np.float32]
Arrays = dict[str, Array]

_FIRST = frozenset({"momentum", "adam", "yogi", "lars", "lamb"})
_SECOND = frozenset({"adagrad", "adam", "yogi", "lamb"})


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """step: updates so far; first, second: moments by parameter name (empty where the kind keeps none)."""

    kind: str
    step: int
    first: Arrays
    second: Arrays


def init(settings: OptimizerSettings, shapes: Mapping[str, tuple[int, ...]]) -> OptimizerState:
    """The state before the first update."""

    def zeros(wanted: bool) -> Arrays:
        return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()} if wanted else {}

    return OptimizerState(settings.kind, 0, zeros(settings.kind in _FIRST), zeros(settings.kind in _SECOND))


def apply(
    settings: OptimizerSettings,
    state: OptimizerState,
    base: Mapping[str, Array],
    mean_delta: Mapping[str, Array],
) -> tuple[Arrays, OptimizerState]:
    """One update. base may hold constants that have no delta; they are returned as they are.

    Returns the new weights and the new state; a state of another kind is replaced by a fresh one.
    """
    if state.kind != settings.kind:
        state = init(settings, {name: values.shape for name, values in mean_delta.items()})
    step = state.step + 1
    rate = np.float32(learning_rate(settings, step))
    weights: Arrays = {name: np.array(values, np.float32) for name, values in base.items()}
    first: Arrays = {}
    second: Arrays = {}
    for name, delta in mean_delta.items():
        change, moments = _change(settings, step, weights[name], -delta, state.first.get(name), state.second.get(name))
        weights[name] -= rate * change
        if settings.kind in _FIRST:
            first[name] = moments[0]
        if settings.kind in _SECOND:
            second[name] = moments[1]
    return weights, OptimizerState(settings.kind, step, first, second)


def state_to_arrays(state: OptimizerState) -> tuple[Arrays, dict[str, str]]:
    """Arrays and metadata to store beside the model."""
    arrays = {f"first.{name}": values for name, values in state.first.items()}
    arrays |= {f"second.{name}": values for name, values in state.second.items()}
    return arrays, {"kind": state.kind, "step": str(state.step)}


def state_from_arrays(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> OptimizerState:
    """What :func:`state_to_arrays` stored."""

    def part(prefix: str) -> Arrays:
        return {
            name.removeprefix(prefix): np.asarray(values) for name, values in arrays.items() if name.startswith(prefix)
        }

    return OptimizerState(metadata["kind"], int(metadata["step"]), part("first."), part("second."))


def update_norm(new: Mapping[str, Array], old: Mapping[str, Array]) -> float:
    """L2 distance of two weight sets, in float64."""
    return math.sqrt(sum(float(np.square(new[name] - old[name], dtype=np.float64).sum()) for name in new))


def _change(
    settings: OptimizerSettings, step: int, weights: Array, gradient: Array, first: Array | None, second: Array | None
) -> tuple[Array, tuple[Array, Array]]:
    """(what the learning rate is to be multiplied with, the moments after) of one parameter; a moment that the kind
    does not keep is empty."""
    none = np.zeros(0, np.float32)
    if settings.kind == "sgd":
        return gradient, (none, none)
    if settings.kind == "adagrad":
        assert second is not None
        squares = second + np.square(gradient)
        scaled: Array = np.divide(gradient, np.sqrt(squares) + np.float32(settings.epsilon), dtype=np.float32)
        return scaled, (none, squares)
    assert first is not None
    if settings.kind == "momentum":
        velocity = np.float32(settings.momentum) * first + gradient
        return velocity, (velocity, none)
    if settings.kind == "lars":
        decayed = gradient + np.float32(settings.weight_decay) * weights
        # The ratio is of the update that the parameter would make without it (You et al. 2017, eq. 6).
        norm = _norm(gradient) + settings.weight_decay * _norm(weights)
        scaled = np.float32(settings.trust * _ratio(_norm(weights), norm, 1.0 / settings.trust)) * decayed
        velocity = np.float32(settings.momentum) * first + scaled
        return velocity, (velocity, none)
    assert second is not None
    average = _average(first, gradient, settings.momentum)
    if settings.kind == "yogi":
        # The second moment moves by the square's size whatever its own, so it never forgets faster than it learns.
        square = np.square(gradient)
        spread = second - np.float32(1 - settings.second_momentum) * np.sign(second - square) * square
    else:
        spread = _average(second, np.square(gradient), settings.second_momentum)
    unbiased = average / np.float32(1 - settings.momentum**step)
    root = np.sqrt(spread / np.float32(1 - settings.second_momentum**step))
    change = unbiased / (root + np.float32(settings.epsilon))
    if settings.kind == "lamb":
        change = change + np.float32(settings.weight_decay) * weights
        change = np.float32(_ratio(_norm(weights), _norm(change), 1.0)) * change
    return change, (average, spread)


def _ratio(weights: float, change: float, otherwise: float) -> float:
    """How long a parameter is in units of its change; ``otherwise`` where either is zero and the ratio says nothing."""
    return weights / change if weights > 0 and change > 0 else otherwise


def _norm(values: Array) -> float:
    return math.sqrt(float(np.square(values, dtype=np.float64).sum()))


def _average(old: Array, new: Array, keep: float) -> Array:
    return np.float32(keep) * old + np.float32(1 - keep) * new
