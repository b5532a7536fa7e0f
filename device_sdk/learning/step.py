"""Stochastic gradient descent in numpy: clip, momentum, step, and the checks that refuse a step gone wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.errors import ConfigurationError, LearningError

__all__ = ["Arrays", "Momentum", "StepSettings", "global_norm", "sgd"]

Arrays = Mapping[str, npt.NDArray[np.float32]]
"""Parameter name -> float32 array, shapes as in the architecture."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """learning_rate: of SGD. momentum: 0 for none. clip_norm: largest L2 norm of the (preconditioned) gradient over all
    parameters together; longer ones are scaled down, shorter ones left alone. precondition: divide gradients by their
    usual sizes, where the bundle knows them, with ``damping`` (see :mod:`device_sdk.learning.preconditioner`).
    largest_norm: a gradient longer than this before clipping counts as divergence. largest_rise: a loss this many times
    the running mean does too, where it is also above ``largest_rise`` times 10 nats (one hard utterance after easy ones
    is no divergence)."""

    learning_rate: float = 0.1
    momentum: float = 0.0
    clip_norm: float = 1.0
    precondition: bool = True
    damping: float = 0.1
    largest_norm: float = 1e4
    largest_rise: float = 20.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip_norm", "damping", "largest_norm", "largest_rise"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigurationError(f"step.{name}: found {value}, expected a positive number")
        if not 0 <= self.momentum < 1:
            raise ConfigurationError(f"step.momentum: found {self.momentum}, expected a number in [0, 1)")


@dataclass(frozen=True, slots=True)
class Momentum:
    """What SGD remembers between steps. velocity: running sum of gradients, empty at the start or without momentum.
    loss: running mean of the losses seen, NaN at the start. steps: taken so far."""

    velocity: Arrays = field(default_factory=dict)
    loss: float = math.nan
    steps: int = 0


def global_norm(arrays: Arrays) -> float:
    """L2 norm over all values of all arrays, summed in float64."""
    return math.sqrt(sum(float(np.vdot(array, array)) for array in arrays.values()))


def sgd(
    weights: Arrays, gradients: Arrays, loss: float, momentum: Momentum, settings: StepSettings
) -> tuple[dict[str, npt.NDArray[np.float32]], Momentum, float]:
    """One step: weights - learning_rate * (clipped gradient, plus momentum). Returns (weights, momentum, norm).

    Constants among the weights (no gradient of that name) are passed through. LearningError: the loss or a gradient is
    not finite, the gradient's norm or the loss exploded, or the step would leave a weight that is not finite. The
    arrays given are never changed, so the weights are as they were.
    """
    if not math.isfinite(loss):
        raise LearningError(f"step {momentum.steps}: loss: found {loss}, expected a finite number; the step is refused")
    norm = global_norm(gradients)
    if not math.isfinite(norm):
        name = next((name for name, array in gradients.items() if not np.all(np.isfinite(array))), "(sum of squares)")
        raise LearningError(f"step {momentum.steps}: gradient {name}: found values that are not finite; refused")
    if norm > settings.largest_norm:
        raise LearningError(
            f"step {momentum.steps}: gradient norm: found {norm:.3g}, expected at most {settings.largest_norm:.3g}; "
            "the step is refused"
        )
    mean = loss if math.isnan(momentum.loss) else momentum.loss
    if loss > settings.largest_rise * max(abs(mean), 10.0):
        raise LearningError(
            f"step {momentum.steps}: loss: found {loss:.3g}, expected less than {settings.largest_rise:.3g} times its "
            f"running mean {mean:.3g}; refused"
        )
    scale = np.float32(min(1.0, settings.clip_norm / norm) if norm else 1.0)
    velocity: dict[str, npt.NDArray[np.float32]] = {}
    stepped = dict(weights)
    rate = np.float32(settings.learning_rate)
    for name, gradient in gradients.items():
        direction = gradient * scale
        if settings.momentum:
            if name in momentum.velocity:
                direction += np.float32(settings.momentum) * momentum.velocity[name]
            velocity[name] = direction
        stepped[name] = weights[name] - rate * direction
        if not np.all(np.isfinite(stepped[name])):
            raise LearningError(f"step {momentum.steps}: {name}: the step leaves values that are not finite; refused")
    return stepped, Momentum(velocity, 0.9 * mean + 0.1 * loss, momentum.steps + 1), norm
