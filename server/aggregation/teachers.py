"""The server's teacher: an exponential moving average of the models of a lineage (Rao et al. 2023, section 2.2)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.learning import teacher as teachers
from device_sdk.learning.settings import TeacherSettings
from server.plans.round import TeacherPlan

__all__ = ["follow"]

Weights = Mapping[str, NDArray[np.float32]]


def follow(teacher: Weights, model: Weights, models: int, plan: TeacherPlan) -> Weights:
    """The teacher after one more model; itself, the same object, where the interval has not passed or nothing is taken.

    models: made since the teacher was, this one included. Constants of the weights, which no round moves, stay.
    """
    if plan.decay == 1.0:
        return teacher
    return teachers.follow(teacher, model, models, TeacherSettings(decay=plan.decay, interval=plan.interval))
