"""Server optimizers: how a mean delta moves the model (FedAvg and its adaptive forms, papers 003 and 004).

The pseudo-gradient is minus the mean delta, since a delta is local minus base: plain SGD with learning rate 1 moves
the base onto the mean of the local models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "OptimizerSettings",
    "OptimizerState",
    "apply",
    "init",
    "state_from_arrays",
    "state_to_arrays",
    "update_norm",
]

Arrays = dict[str, NDArray[np.float32]]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(BaseModel):
    """kind and its hyper-parameters. epsilon: Adam's adaptivity, added to the root of the second moment."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: Literal["sgd", "momentum", "adam"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.99
    epsilon: Annotated[float, Field(gt=0)] = 1e-3


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

    return OptimizerState(settings.kind, 0, zeros(settings.kind != "sgd"), zeros(settings.kind == "adam"))


def apply(
    settings: OptimizerSettings,
    state: OptimizerState,
    base: Mapping[str, NDArray[np.float32]],
    mean_delta: Mapping[str, NDArray[np.float32]],
) -> tuple[Arrays, OptimizerState]:
    """One update. base may hold constants that have no delta; they are returned as they are.

    Returns the new weights and the new state; a state of another kind is replaced by a fresh one.
    """
    if state.kind != settings.kind:
        state = init(settings, {name: values.shape for name, values in mean_delta.items()})
    step = state.step + 1
    weights: Arrays = {name: np.array(values, np.float32) for name, values in base.items()}
    first: Arrays = {}
    second: Arrays = {}
    rate = np.float32(settings.learning_rate)
    for name, delta in mean_delta.items():
        gradient = -delta
        match settings.kind:
            case "sgd":
                weights[name] -= rate * gradient
            case "momentum":
                first[name] = np.float32(settings.momentum) * state.first[name] + gradient
                weights[name] -= rate * first[name]
            case "adam":
                first[name] = _average(state.first[name], gradient, settings.momentum)
                second[name] = _average(state.second[name], np.square(gradient), settings.second_momentum)
                unbiased = first[name] / np.float32(1 - settings.momentum**step)
                spread = np.sqrt(second[name] / np.float32(1 - settings.second_momentum**step))
                weights[name] -= rate * unbiased / (spread + np.float32(settings.epsilon))
    return weights, OptimizerState(settings.kind, step, first, second)


def state_to_arrays(state: OptimizerState) -> tuple[Arrays, dict[str, str]]:
    """Arrays and metadata to store beside the model."""
    arrays = {f"first.{name}": values for name, values in state.first.items()}
    arrays |= {f"second.{name}": values for name, values in state.second.items()}
    return arrays, {"kind": state.kind, "step": str(state.step)}


def state_from_arrays(arrays: Mapping[str, NDArray[np.float32]], metadata: Mapping[str, str]) -> OptimizerState:
    """What :func:`state_to_arrays` stored."""

    def part(prefix: str) -> Arrays:
        return {
            name.removeprefix(prefix): np.asarray(values) for name, values in arrays.items() if name.startswith(prefix)
        }

    return OptimizerState(metadata["kind"], int(metadata["step"]), part("first."), part("second."))


def _average(old: NDArray[np.float32], new: NDArray[np.float32], keep: float) -> NDArray[np.float32]:
    return np.float32(keep) * old + np.float32(1 - keep) * new


def update_norm(new: Mapping[str, NDArray[np.float32]], old: Mapping[str, NDArray[np.float32]]) -> float:
    """L2 distance of two weight sets, in float64."""
    return math.sqrt(sum(float(np.square(new[name] - old[name], dtype=np.float64).sum()) for name in new))
