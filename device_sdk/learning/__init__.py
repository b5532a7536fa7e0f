"""Local gradient steps from weak feedback (Rao et al. 2023): losses, teacher, SGD, deltas; gradients from graphs."""

from device_sdk.learning.guard import GuardSettings
from device_sdk.learning.learner import Student
from device_sdk.learning.loop import LearningReport
from device_sdk.learning.rehearsal import Transcribed
from device_sdk.learning.settings import LearningSettings, MaskSettings, StepSettings, TeacherSettings

__all__ = [
    "GuardSettings",
    "LearningReport",
    "LearningSettings",
    "MaskSettings",
    "StepSettings",
    "Student",
    "TeacherSettings",
    "Transcribed",
]
