"""The mean gradient at the published weights, which FedSGD sends instead of the outcome of local steps.

Sums of sums are sums: what is added in several sittings, or on several devices, has the same mean. Every utterance is
added once and its features are gone, so a device's data is used in a single pass (Rao et al. 2023, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.errors import LearningError
from device_sdk.learning.step import Arrays

__all__ = ["GradientSum", "add", "empty", "mean"]


@dataclass(frozen=True, slots=True)
class GradientSum:
    """sum: parameter name -> float32 array, over ``utterances`` of them. limit: how many are wanted, None for any
    number."""

    sum: Arrays
    utterances: int
    limit: int | None = None

    @property
    def full(self) -> bool:
        return self.limit is not None and self.utterances >= self.limit


def empty(shapes: Mapping[str, tuple[int, ...]], limit: int | None = None) -> GradientSum:
    """The sum of no gradient."""
    return GradientSum({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, 0, limit)


def add(total: GradientSum, gradients: Arrays) -> GradientSum:
    """The sum with one more utterance's gradient; a parameter without one counts as zero. ``total`` stays as it is.

    LearningError: a gradient of no parameter of the sum, or one that is not finite.
    """
    unknown = gradients.keys() - total.sum.keys()
    if unknown:
        raise LearningError(f"gradient {sorted(unknown)[0]}: not a parameter of the sum")
    added: dict[str, npt.NDArray[np.float32]] = dict(total.sum)
    for name, gradient in gradients.items():
        if not np.all(np.isfinite(gradient)):
            raise LearningError(f"gradient {name}: found values that are not finite; the utterance is left out")
        added[name] = added[name] + gradient
    return GradientSum(added, total.utterances + 1, total.limit)


def mean(total: GradientSum) -> dict[str, npt.NDArray[np.float32]]:
    """The mean over the utterances; zero over none."""
    share = np.float32(1.0 / total.utterances if total.utterances else 0.0)
    return {name: array * share for name, array in total.sum.items()}
