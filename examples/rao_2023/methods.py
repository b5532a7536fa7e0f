"""How a cohort learns: one row of the paper's tables, as data (Rao et al. 2023, sections 2 and 3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from device_sdk.errors import ConfigurationError
from device_sdk.learning.settings import MaskSettings, TeacherSettings
from examples.rao_2023.labels import LabelSettings
from server.plans.optimizer import OptimizerSettings

__all__ = ["CohortSettings", "Label", "Method", "Weak"]

Label = Literal["transcript", "teacher", "none"]
Weak = Literal["transcript", "slots", "score"]


@dataclass(frozen=True, slots=True)
class Method:
    """label: what the student is taught: the true transcript (the oracle), the teacher's, or nothing.
    teacher: how it follows the student; decay 1 never updates it. weak: what feedback says of the student's n-best:
    word errors against another recognizer's transcript, wrong slots (both by expected cost), or only whether the served
    hypothesis was wrong (REINFORCE). sigma: noise of that score. rehearsal: pseudo-devices with transcribed clips of
    the old domain, a round."""

    name: str
    label: Label = "teacher"
    teacher: TeacherSettings = field(default_factory=lambda: TeacherSettings(decay=1.0, interval=1, confidence=0.0))
    weak: tuple[Weak, ...] = ()
    sigma: float = 0.0
    rehearsal: int = 0

    def __post_init__(self) -> None:
        if self.label == "none" and not self.weak:
            raise ConfigurationError(f"method {self.name!r}: neither a label nor feedback; expected one of them")
        if "score" in self.weak and len(self.weak) > 1:
            raise ConfigurationError(f"method {self.name!r}: a score beside other feedback; expected it alone")


@dataclass(frozen=True, slots=True)
class CohortSettings:
    """What all rows share.

    rounds: gradients that the server takes a step by. devices: of a round. batch: utterances of a device in a round.
    optimizer: the server's; its rate falls linearly to ``floor`` of what it is at first. beam: length of the n-best
    lists that feedback is about. baseline: of REINFORCE. weight: of the feedback beside the label; an expected cost
    pulls a quarter as hard as a label at most. masks: SpecAugment of what the student sees. labels: how a teacher finds
    them. alternate_errors: word errors of the other recognizer. trained: prefixes of the parameters that learn, by
    default those through which the encoder hears: what easy utterances teach of how the new domain sounds then holds
    for hard ones too, while a whole network rather learns its wrong labels by heart. evaluate_every: rounds between
    points of the curve, on development speech.
    """

    rounds: int = 300
    devices: int = 32
    batch: int = 1
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(kind="adam", learning_rate=8e-4, epsilon=1e-6)
    )
    floor: float = 0.3
    beam: int = 4
    baseline: float = 0.5
    weight: float = 2.0
    masks: MaskSettings = field(default_factory=MaskSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)
    alternate_errors: float = 0.1
    trained: tuple[str, ...] = ("encoder.0.W", "encoder.0.B")
    evaluate_every: int = 50
    bfloat16: bool = True
    pruning: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("rounds", "devices", "batch", "beam", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"cohort.{name}: found {getattr(self, name)}, expected 1 or more")
        if not 0.0 <= self.alternate_errors < 1.0:
            raise ConfigurationError(f"cohort.alternate_errors: found {self.alternate_errors}, expected 0 to below 1")

    def optimizer_at(self, number: int) -> OptimizerSettings:
        """The server's optimizer in round ``number``, counted from 0."""
        share = 1.0 - (1.0 - self.floor) * number / max(1, self.rounds - 1)
        return self.optimizer.model_copy(update={"learning_rate": self.optimizer.learning_rate * share})
