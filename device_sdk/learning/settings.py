"""How a device learns: which losses, how strongly, and what it leaves out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from device_sdk.bundle.subsets import SUBSETS, Subset
from device_sdk.errors import ConfigurationError
from device_sdk.learning.rehearsal import RehearsalSettings
from device_sdk.learning.specaugment import MaskSettings
from device_sdk.learning.step import StepSettings
from device_sdk.learning.teacher import TeacherSettings

__all__ = ["SUBSETS", "Labels", "LearningSettings", "Serving", "Subset"]

Labels = Literal["feedback", "teacher"]
"""Whose label an utterance with feedback gets, see :func:`device_sdk.learning.candidates.objective`. feedback: the
teacher's, unless feedback speaks against it. teacher: the teacher's, always (Rao et al. 2023)."""

Serving = Literal["best", "sampled"]
"""Which hypothesis the app gets first, see :mod:`device_sdk.learning.serving`."""


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Losses are summed with these weights; 0 leaves one out (Rao et al. 2023 weighs them equally).

    label_weight: on the label; labels: whose that is. cost_weight: on the expected cost over the n-best (eq. 1).
    supervision_weight: on the words that the user gave. reinforce_weight: REINFORCE on the served hypothesis, against
    ``baseline``, which is what serving usually costs: ``baseline_decay`` of it stays with every utterance that has
    feedback, the rest becomes that utterance's cost (1 leaves it fixed; Rao et al. 2023 has none). serving: sampled
    hypotheses are what REINFORCE asks for, the best one is what users do. rehearsal: of transcribed utterances that
    the app supplies, so that what was known before is not forgotten.
    hypotheses: how many an utterance's losses run over at most. repair: propose candidates that the beam missed, where
    slots are known. subset: which parameters steps move, see :data:`SUBSETS`. rank: of the factors of ``adapters``.
    keep: share of what steps here have changed that is kept on a newly published base; 0 drops it. passes: gradient
    steps that one utterance is used for, one after the other; its features are gone afterwards; None is 2, and 4 where
    the user had to correct it, so that it need not be corrected again and again. confirmation: share of its gradients
    that an utterance steps by which feedback says was served right: there is nothing to mend, and whole steps would
    cost what else is known. wait_seconds: an utterance without feedback is learned from only when it is this old.
    """

    label_weight: float = 1.0
    cost_weight: float = 1.0
    supervision_weight: float = 1.0
    reinforce_weight: float = 0.0
    baseline: float = 0.0
    baseline_decay: float = 1.0
    labels: Labels = "feedback"
    serving: Serving = "best"
    hypotheses: int = 5
    repair: bool = True
    subset: Subset = "whole"
    rank: int = 8
    keep: float = 0.8
    passes: int | None = None
    confirmation: float = 0.1
    wait_seconds: float = 60.0
    step: StepSettings = field(default_factory=StepSettings)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    masks: MaskSettings = field(default_factory=MaskSettings)
    rehearsal: RehearsalSettings = field(default_factory=RehearsalSettings)

    def __post_init__(self) -> None:
        for name in ("label_weight", "cost_weight", "supervision_weight", "reinforce_weight", "wait_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"learning.{name}: found {value}, expected a number >= 0")
        if not math.isfinite(self.baseline):
            raise ConfigurationError(f"learning.baseline: found {self.baseline}, expected a finite number")
        for name in ("keep", "baseline_decay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigurationError(f"learning.{name}: found {getattr(self, name)}, expected a share in [0, 1]")
        if not 0.0 < self.confirmation <= 1.0:
            raise ConfigurationError(f"learning.confirmation: found {self.confirmation}, expected a share in (0, 1]")
        choices = {"subset": SUBSETS, "labels": get_args(Labels), "serving": get_args(Serving)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigurationError(
                    f"learning.{name}: found {getattr(self, name)!r}, expected one of {sorted(known)}"
                )
        for name in ("hypotheses", "passes", "rank"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ConfigurationError(f"learning.{name}: found {value}, expected 1 or more")
