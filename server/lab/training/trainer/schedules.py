"""How long a run lasts, and its learning rate on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from device_sdk.errors import ConfigurationError

__all__ = ["Budget", "Schedule"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of steps or minutes of training time (stops are not counted)."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ConfigurationError("budget: give either steps or minutes")
        if (self.steps or self.minutes or 0) <= 0:
            raise ConfigurationError(f"budget: found {self.steps or self.minutes}, expected more than 0")

    def progress(self, steps: int, seconds: float) -> float:
        """Share of the budget used, 0 to 1."""
        if self.steps is not None:
            return min(1.0, steps / self.steps)
        assert self.minutes is not None
        return min(1.0, seconds / (60.0 * self.minutes))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate of every step.

    It rises linearly to ``peak`` over ``warmup`` steps. Then, by ``decay``: ``cosine`` follows half a cosine over the
    whole budget, from its begin, down to ``floor`` of the peak; ``inverse_square_root`` falls as
    peak * sqrt(warmup / step) (Vaswani et al. 2017, section 5.3), not below ``floor`` of the peak; ``constant`` does
    not fall.
    """

    peak: float = 2e-3
    warmup: int = 200
    decay: Literal["cosine", "inverse_square_root", "constant"] = "cosine"
    floor: float = 0.01

    def __post_init__(self) -> None:
        if self.decay not in ("cosine", "inverse_square_root", "constant"):
            raise ConfigurationError(
                f"schedule.decay: found {self.decay!r}, expected cosine, inverse_square_root or constant"
            )
        if self.warmup < 0 or not 0.0 <= self.floor <= 1.0 or not self.peak > 0.0:
            raise ConfigurationError(
                f"schedule: found peak={self.peak}, warmup={self.warmup}, floor={self.floor}; "
                "expected more than 0, at least 0 and a share of 1"
            )

    def rate(self, progress: float, step: int) -> float:
        """progress: share of the budget used; step: how many are done."""
        rising = min(1.0, (step + 1) / max(1, self.warmup))
        if self.decay == "cosine":
            fallen = self.floor + (1.0 - self.floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
        elif self.decay == "inverse_square_root":
            fallen = max(self.floor, math.sqrt(max(1, self.warmup) / max(1, self.warmup, step + 1)))
        else:
            fallen = 1.0
        return self.peak * rising * fallen
