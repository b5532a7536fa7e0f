"""How a device learns: which losses, how strongly, and what it leaves out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from device_sdk.errors import ConfigurationError
from device_sdk.learning.specaugment import MaskSettings
from device_sdk.learning.step import StepSettings
from device_sdk.learning.teacher import TeacherSettings

__all__ = ["SUBSETS", "LearningSettings", "Subset"]

Subset = Literal["whole", "acoustic"]

SUBSETS: Mapping[Subset, tuple[str, ...]] = {"whole": ("",), "acoustic": ("encoder.", "joiner.encoder.")}
"""Subset -> how the names of its parameters begin. acoustic: how a voice sounds, not which words follow which. Better
where users say ever new things: a few steps on what was said last would make it likelier to be heard next."""


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Losses are summed with these weights; 0 leaves one out (paper 001 weighs them equally).

    label_weight: on the label, which is the teacher's, or what feedback makes of it. cost_weight: on the expected cost
    over the n-best (eq. 1). reinforce_weight: REINFORCE on the served hypothesis, with ``baseline``.
    hypotheses: how many an utterance's losses run over at most. repair: propose candidates that the beam missed, where
    slots are known. subset: which parameters steps move, see :data:`SUBSETS`. keep: share of what steps here have
    changed that is kept on a newly published base; 0 drops it. passes: gradient steps that one utterance is used for,
    one after the other; its features are gone afterwards. wait_seconds: an utterance without feedback is learned from
    only when it is this old.
    """

    label_weight: float = 1.0
    cost_weight: float = 1.0
    reinforce_weight: float = 0.0
    baseline: float = 0.0
    hypotheses: int = 5
    repair: bool = True
    subset: Subset = "whole"
    keep: float = 0.8
    passes: int = 2
    wait_seconds: float = 60.0
    step: StepSettings = field(default_factory=StepSettings)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    masks: MaskSettings = field(default_factory=MaskSettings)

    def __post_init__(self) -> None:
        for name in ("label_weight", "cost_weight", "reinforce_weight", "wait_seconds"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigurationError(f"learning.{name}: found {value}, expected a number >= 0")
        if not math.isfinite(self.baseline):
            raise ConfigurationError(f"learning.baseline: found {self.baseline}, expected a finite number")
        if not 0.0 <= self.keep <= 1.0:
            raise ConfigurationError(f"learning.keep: found {self.keep}, expected a share in [0, 1]")
        if self.subset not in SUBSETS:
            raise ConfigurationError(f"learning.subset: found {self.subset!r}, expected one of {sorted(SUBSETS)}")
        for name in ("hypotheses", "passes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"learning.{name}: found {getattr(self, name)}, expected 1 or more")
