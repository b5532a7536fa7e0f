"""The teacher: an exponential moving average of the student, so that errors do not feed themselves (Rao et al. 2023,
2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from device_sdk.errors import ConfigurationError
from device_sdk.learning.step import Arrays

__all__ = ["TeacherSettings", "updated"]


@dataclass(frozen=True, slots=True)
class TeacherSettings:
    """decay: how much of the teacher stays at an update (delta of table 5). interval: student steps between updates
    (u of table 5). confidence: labels whose normalized n-best probability is lower are not learned from; 0 keeps all.
    schedule: ``server`` takes the teacher that the server publishes beside its model, which follows the models of all
    devices, and leaves it alone; while there is none, and under ``local``, the teacher follows this device's student.

    A teacher that follows the student at once (low decay at every step: 0.975 and 1 in table 5) diverges.
    """

    decay: float = 0.99
    interval: int = 10
    confidence: float = 0.5
    schedule: Literal["local", "server"] = "local"

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ConfigurationError(f"teacher.decay: found {self.decay}, expected a number in [0, 1]")
        if self.interval < 1:
            raise ConfigurationError(f"teacher.interval: found {self.interval}, expected a positive number of steps")
        if not 0 <= self.confidence <= 1:
            raise ConfigurationError(f"teacher.confidence: found {self.confidence}, expected a number in [0, 1]")
        if self.schedule not in ("local", "server"):
            raise ConfigurationError(f"teacher.schedule: found {self.schedule!r}, expected 'local' or 'server'")


def updated(teacher: Arrays, student: Arrays, step: int, settings: TeacherSettings) -> Arrays:
    """decay * teacher + (1 - decay) * student after every ``interval`` steps, else the teacher itself.

    step: student steps taken so far, counted from 1.
    """
    if step % settings.interval:
        return teacher
    take = np.float32(1.0 - settings.decay)
    mixed: dict[str, npt.NDArray[np.float32]] = {  # shares rounded one by one would not sum to 1, and drift
        name: array + take * (student[name] - array) for name, array in teacher.items()
    }
    return mixed
