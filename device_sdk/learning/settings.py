"""How a device learns: losses, steps, teacher, masks, rehearsal."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from device_sdk.bundle.architecture import SUBSETS, Subset
from device_sdk.checks import check_choice, check_intervals

Labels = Literal["feedback", "teacher"]
"""Whose label an utterance with feedback gets, see :func:`device_sdk.learning.candidates.objective`. feedback: the
teacher's, unless feedback speaks against it. teacher: the teacher's, always (Rao et al. 2023)."""

Serving = Literal["best", "sampled"]
"""Which hypothesis the app gets first, see :func:`device_sdk.learning.objectives.serve`."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """learning_rate: of SGD. clip_norm: largest L2 norm of the (preconditioned) gradient over all
    parameters together. precondition: divide gradients by their usual sizes, where the bundle knows them, with
    ``damping`` (see :func:`device_sdk.learning.step.scales`). largest_norm: a gradient longer than this before clipping
    counts as divergence. largest_rise: a loss this many times the running mean does too, where it is also above
    ``largest_rise`` times 10 nats (one hard utterance after easy ones is no divergence)."""

    learning_rate: float = 0.2
    clip_norm: float = 1.0
    precondition: bool = True
    damping: float = 0.1
    largest_norm: float = 1e4
    largest_rise: float = 20.0

    def __post_init__(self) -> None:
        positive = ("learning_rate", "clip_norm", "damping", "largest_norm", "largest_rise")
        check_intervals("step", self, "(0, inf)", *positive)


@dataclass(frozen=True, slots=True)
class TeacherSettings:
    """decay: how much of the teacher stays at an update (delta of table 5). interval: student steps between updates (u
    of table 5). confidence: labels whose normalized n-best probability is lower are not learned from; 0 keeps all.
    schedule: ``server`` takes the teacher that the server publishes beside its model, which follows the models of all
    devices, and leaves it alone; while there is none, and under ``local``, the teacher follows this device's student. A
    teacher that follows the student at once (low decay at every step: 0.975 and 1 in table 5) diverges."""

    decay: float = 0.99
    interval: int = 10
    confidence: float = 0.5
    schedule: Literal["local", "server"] = "local"

    def __post_init__(self) -> None:
        check_intervals("teacher", self, "[0, 1]", "decay", "confidence")
        check_intervals("teacher", self, "[1, inf)", "interval")
        check_choice("teacher.schedule", self.schedule, ("local", "server"))


@dataclass(frozen=True, slots=True)
class MaskSettings:
    """frequency_masks of up to ``frequency_width`` mel bins, time_masks of up to ``time_width`` frames and at most
    ``time_share`` of the utterance in all. 0 masks of both kinds leave the features as they are."""

    frequency_masks: int = 1
    frequency_width: int = 12
    time_masks: int = 2
    time_width: int = 12
    time_share: float = 0.1

    def __post_init__(self) -> None:
        check_intervals("masks", self, "[0, inf)", "frequency_masks", "frequency_width", "time_masks", "time_width")
        check_intervals("masks", self, "[0, 1]", "time_share")


@dataclass(frozen=True, slots=True)
class RehearsalSettings:
    """every: utterances of the user that steps were taken on, between two rehearsed ones (Rao et al. 2023 has ten
    devices to one pseudo-device). weight: on the transcript, 0 for none."""

    every: int = 4
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_intervals("rehearsal", self, "[1, inf)", "every")
        check_intervals("rehearsal", self, "[0, inf)", "weight")


@dataclass(frozen=True, slots=True)
class LearningSettings:
    """Losses are summed with these weights; 0 leaves one out (Rao et al. 2023 weighs them equally).

    label_weight: on the label; labels: whose that is. cost_weight: on the expected cost over the n-best (eq. 1).
    supervision_weight: on the words that the user gave. reinforce_weight: REINFORCE on the served hypothesis, against
    ``baseline``, which is what serving usually costs: ``baseline_decay`` of it stays with every utterance that has
    feedback, the rest becomes that utterance's cost (1 leaves it fixed; Rao et al. 2023 has none). serving: sampled
    hypotheses are what REINFORCE asks for, the best one is what users do. rehearsal: of transcribed utterances that the
    app supplies, so that what was known before is not forgotten. hypotheses: how many an utterance's losses run over at
    most. repair: propose candidates that the beam missed, where slots are known. most_nats: what was not served and is
    less likely, for each piece of it, is no label: with the right slots the rest of it may be wrong. rewrite_nats: a
    correction that much less likely than what was heard, for each piece, was not said: a user who writes something else
    trains nothing. subset: which parameters steps move, see :data:`SUBSETS`; None is the bundle's own (its ``subset``):
    all of it, where there are gradients of all of it. rank: of the factors of ``adapters``. keep: share of what steps
    here have changed that is kept on a newly published base; 0 drops it. passes: gradient steps that one utterance is
    used for, one after the other; its features are gone afterwards; None is 2, and where the user had to correct it 4
    and up to 16, until it is heard so. replays: earlier corrections, drawn at random, that one step each is taken on
    again after one: one alone soon means its own words. They stay in memory for it. confirmation: share of its
    gradients that an utterance steps by which feedback says was served right: there is nothing to mend, and whole steps
    would cost what else is known. wait_seconds: an utterance without feedback is learned from only when it is this
    old."""

    label_weight: float = 1.0
    cost_weight: float = 1.0
    supervision_weight: float = 1.0
    reinforce_weight: float = 0.0
    baseline: float = 0.0
    baseline_decay: float = 1.0
    labels: Labels = "feedback"
    most_nats: float = 1.2
    rewrite_nats: float = 3.0
    serving: Serving = "best"
    hypotheses: int = 5
    repair: bool = True
    subset: Subset | None = None
    rank: int = 8
    keep: float = 0.8
    passes: int | None = None
    replays: int = 8
    confirmation: float = 0.1
    wait_seconds: float = 60.0
    step: StepSettings = field(default_factory=StepSettings)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    masks: MaskSettings = field(default_factory=MaskSettings)
    rehearsal: RehearsalSettings = field(default_factory=RehearsalSettings)

    def __post_init__(self) -> None:
        weights = ("label_weight", "cost_weight", "supervision_weight", "reinforce_weight")
        check_intervals("learning", self, "[0, inf)", *weights, "wait_seconds", "most_nats", "rewrite_nats")
        check_intervals("learning", self, "(-inf, inf)", "baseline")
        check_intervals("learning", self, "[0, 1]", "keep", "baseline_decay")
        check_intervals("learning", self, "(0, 1]", "confirmation")
        check_intervals("learning", self, "[1, inf)", "hypotheses", "rank")
        check_intervals("learning", self, "[0, inf)", "replays")
        if self.passes is not None:
            check_intervals("learning", self, "[1, inf)", "passes")
        if self.subset is not None:
            check_choice("learning.subset", self.subset, tuple(SUBSETS))
        check_choice("learning.labels", self.labels, get_args(Labels))
        check_choice("learning.serving", self.serving, get_args(Serving))
