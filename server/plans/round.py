"""What an operator decides about one round, its optimizer and its rollout, validated before the round exists."""

import math
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from device_sdk.errors import PrivacyError
from device_sdk.privacy import quantised
from device_sdk.privacy.contributions import share_variance, weight_units
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan
from device_sdk.wire.secure_aggregation import MAX_MEMBERS, MAX_WORDS
from server.problems import Refusal

SMALLEST_MULTIPLIER = 1e-5
"""Of the server's noise: below it a clipping bound is so many steps that the deltas of ten million devices might not
add up in 63 bits."""
STREAMS = ("marginals", "deltas", "words")
NOISE_DEVIATIONS = 16.0
"""How far one device's noise may lie from zero, in standard deviations: a word passes it once in 10^56 draws."""
YEAR = 366 * 86_400.0
Fraction = Annotated[float, Field(ge=0, lt=1)]
_MEASURES = {"loss": "loss", "word_errors": "word_error"}
"""What a weighting needs to know of every device."""


class _Plan(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ScheduleSettings(_Plan):
    """How the learning rate moves with the number of updates t = 1, 2, ...

    warmup: updates over which it rises linearly to its value. start, decay, transition: after ``start`` updates it is
    multiplied by decay^((t - start) / transition) (Pelikan et al. 2023: decay 0.6 over 250 to 750 updates from t = 750
    or 1,000 on). least: the smallest share of the learning rate that is left."""

    warmup: Annotated[int, Field(ge=0)] = 0
    start: Annotated[int, Field(ge=0)] = 0
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    transition: Annotated[int, Field(ge=1)] = 1
    least: Annotated[float, Field(ge=0, le=1)] = 0.0


class OptimizerSettings(_Plan):
    """kind and its hyper-parameters.

    momentum, second_momentum: of the moments, which ``sgd`` has not. epsilon: added to the root of the second moment.
    weight_decay: of LAMB, which scales it with the update. schedule: of the learning rate."""

    kind: Literal["sgd", "adam", "lamb"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.99
    epsilon: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: ScheduleSettings = ScheduleSettings()


class RolloutSettings(_Plan):
    """share: of the devices that get the model first; as many others are the control. seconds: how long it runs before
    it may be promoted. patience: seconds within which a device that was offered something must have come back, with it
    installed; more than the fleet takes between two check-ins. minimum: devices of either arm that must have been
    watched that long before anything is decided. doubt: the probability, at most, that a model is taken back which is
    no worse than the other. automatic: False leaves promotion to the operator; what is worse is taken back either
    way."""

    share: Annotated[float, Field(ge=1e-6, le=0.5)] = 0.1
    seconds: Annotated[float, Field(gt=0, le=YEAR)] = 2 * 86_400.0
    patience: Annotated[float, Field(gt=0, le=YEAR)] = 86_400.0
    minimum: Annotated[int, Field(ge=1, le=10_000_000)] = 20
    doubt: Annotated[float, Field(gt=0, lt=1)] = 0.05
    automatic: bool = True


class TeacherPlan(_Plan):
    """The teacher that is published beside the model: decay * teacher + (1 - decay) * model, taken after every
    ``interval`` models of a lineage (delta and u of Rao et al. 2023, table 5); it begins as the model that the first
    round started from. Between, the teacher stays the same. decay 1 never updates it."""

    decay: Annotated[float, Field(ge=0, le=1)] = 0.999
    interval: Annotated[int, Field(ge=1)] = 10


class RehearsalPlan(_Plan):
    """Pseudo-devices on the server, which learn from transcribed speech and count among the devices (Rao et al. 2023,
    section 3): so a model does not lose what it was trained on.

    pseudo_devices: how many a round. batch_size: utterances of each, at most; no utterance is drawn again before all
    have been. weight: of one pseudo-device, in devices. learning_rate: of its steps, where the round collects weight
    differences; gradients are taken without steps. seed: of the draws. What it sends is clipped like a device's and
    gets no noise: it tells nothing about a user."""

    pseudo_devices: Annotated[int, Field(ge=1, le=1_000_000)] = 40
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    learning_rate: Annotated[float, Field(gt=0, le=1e3)] = 0.1
    seed: Annotated[int, Field(ge=0)] = 0


class ServerStep(_Plan):
    """Steps on transcribed speech that the server holds, taken from the weights that a round has made and before they
    are published: the additional iteration on held-out data of Gao et al. 2022, section 3.1.

    utterances: one step each, drawn as for rehearsal. learning_rate: of the steps. clip_norm: L2 bound of what they
    move together. seed: of the draws."""

    utterances: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    learning_rate: Annotated[float, Field(gt=0, le=1e3)] = 0.1
    clip_norm: Annotated[float, Field(gt=0, lt=1e9)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0


class GroupPlan(_Plan):
    """How a round whose trust is ``distributed`` forms its groups.

    size: devices in a group; what a device computes and sends grows with it, so a round of thousands is many groups.
    The last group may be smaller. stage_seconds: how long a group waits at each stage for those who have not answered;
    it must be longer than devices take between two check-ins."""

    size: Annotated[int, Field(ge=2, le=MAX_MEMBERS)] = 50
    stage_seconds: Annotated[float, Field(gt=0, le=YEAR)] = 3600.0


class SamplingPlan(_Plan):
    """How a round chooses among the eligible devices: those enrolled, and not revoked, when it opens.

    kind: ``poisson`` asks each on its own with probability ``rate``; ``fixed`` asks so many. rate: q; None asks for
    ``over_selection`` times the round's goal, on the average or exactly, for those that do not answer. amplified: the
    ledger charges every eligible device for the release, asked or not, by what sampling leaves of its privacy loss,
    instead of each that reports in full; a release must not depend on how many answered."""

    kind: Literal["poisson", "fixed"] = "poisson"
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    over_selection: Annotated[float, Field(ge=1, le=100)] = 1.0
    amplified: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kind == "fixed" and self.rate is not None:
            asked = "fixed sampling asks over_selection times the goal, so leave it out"
            raise ValueError(f"rate: found {self.rate}; {asked}")
        if self.rate is not None and self.over_selection != 1:
            raise ValueError(f"over_selection: found {self.over_selection} beside a rate; expected one of them")
        if self.amplified and self.kind != "poisson":
            raise ValueError(f"kind: found {self.kind!r}; amplified accounting needs 'poisson'")
        if self.amplified and self.over_selection != 1:
            raise ValueError(f"over_selection: found {self.over_selection}; amplified accounting forbids it")
        if self.amplified and self.rate is None:
            needed = "amplified accounting needs the probability of every device to be stated"
            raise ValueError(f"rate: found none; {needed}")
        return self


class RoundSettings(_Plan):
    """Streams, cohort and aggregation of one round, and how many follow it.

    marginals, deltas, words: the plans devices follow; None leaves the stream out. goal: reports per stream at which
    the round closes by itself and beyond which it accepts none (where ``groups`` of devices add up their vectors by
    secure aggregation, devices that joined and have not dropped out); None leaves closing to the deadline or the
    operator. minimum: a stream with fewer reports releases nothing. seconds: from opening to the deadline. smoothing:
    weight of the background in the published marginal, in words. suppression: released counts below this many standard
    deviations are dropped, and below as many as noise alone may reach on so long a list; 0 keeps every positive count.

    weighting: of deltas in their mean, by utterances (``weight_limit`` at most), by training loss or by word error (Gao
    et al. 2022, eq. 8 to 10), or alike. averaging: the mean, or by ``cosine`` the mean without up to the ``trimmed``
    share of the devices, those that point away from the others; devices count alike. noise_multiplier: z, the standard
    deviation of the Gaussian noise that the server adds to every value of the deltas' sum, in clipping bounds; 0 for
    none. teacher, rehearsal, server_step: what the server adds to rounds that collect deltas; None leaves it out.
    sampling: who is asked; None asks every device. rounds: how many rounds like this one there are, with it; the next
    opens when this one ends, unless an operator abandons it, its model is refused, or another round is open.
    no_privacy: the operator's word that the noise may be too little to protect anybody; without it a server opens no
    such round (:mod:`server.privacy.protection`)."""

    marginals: MarginalPlan | None = MarginalPlan()
    deltas: DeltaPlan | None = None
    words: WordPlan | None = None
    goal: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    minimum: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    seconds: Annotated[float, Field(gt=0, le=YEAR)] = 86400.0
    smoothing: Annotated[float, Field(gt=0)] = 100.0
    suppression: Annotated[float, Field(ge=0)] = 3.0
    weighting: Literal["utterances", "uniform", "loss", "word_errors"] = "utterances"
    weight_limit: Annotated[int, Field(ge=1)] = 100
    averaging: Literal["mean", "cosine"] = "mean"
    trimmed: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    optimizer: OptimizerSettings = OptimizerSettings()
    teacher: TeacherPlan | None = None
    rehearsal: RehearsalPlan | None = None
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    groups: GroupPlan = GroupPlan()
    noise_multiplier: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    sampling: SamplingPlan | None = None
    server_step: ServerStep | None = None
    no_privacy: bool = False

    @model_validator(mode="before")
    @classmethod
    def _asked_measure(cls, fields: Any) -> Any:
        """What devices must tell of themselves follows from the weighting, where the plan says nothing of it."""
        if isinstance(fields, dict) and fields.get("weighting") in _MEASURES and isinstance(fields.get("deltas"), dict):
            return fields | {"deltas": {"measure": _MEASURES[fields["weighting"]]} | fields["deltas"]}
        return fields

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.streams:
            raise ValueError("marginals, deltas, words: found none of them; expected a plan for at least one stream")
        if self.goal is not None and self.goal < self.minimum:
            raise ValueError(f"goal: found {self.goal}, expected at least minimum = {self.minimum}")
        if (summed := self.aggregated_plan) is not None:
            if self.minimum < summed.minimum_survivors:
                raise ValueError(
                    f"minimum: found {self.minimum}, expected at least minimum_survivors = {summed.minimum_survivors}: "
                    "the noise of fewer devices is too little"
                )
            check_groups(self.groups, summed)
        for plan in (self.marginals, self.deltas, self.words):
            for name, value in plan.model_dump().items() if plan is not None else ():
                if isinstance(value, float) and not value < 1e9:
                    raise ValueError(f"{name}: found {value!r}, expected a number below 1e9")
        for name in ("teacher", "rehearsal", "server_step"):
            if self.deltas is None and getattr(self, name) is not None:
                raise ValueError(f"{name}: found a plan without one for deltas; expected a round that moves the model")
        if self.deltas is not None:
            self._check_averaging(self.deltas)
            if self.deltas.trust == "distributed":
                self._check_masked()
        if self.noise_multiplier and self.deltas is None:
            raise ValueError(
                "noise_multiplier: found noise without a plan for deltas; expected a round that collects them"
            )
        if self.noisy:
            self._check_noise()
        if self.sampling is not None:
            self._check_sampling(self.sampling)
        return self

    @property
    def aggregated(self) -> Literal["marginals", "deltas"] | None:
        """The stream that is summed by secure aggregation, and taken in no other way; one at most."""
        if self.marginals is not None and self.marginals.trust == "distributed":
            return "marginals"
        return "deltas" if self.deltas is not None and self.deltas.trust == "distributed" else None

    @property
    def aggregated_plan(self) -> MarginalPlan | DeltaPlan | None:
        """The plan of the stream that secure aggregation sums."""
        return getattr(self, self.aggregated) if self.aggregated is not None else None

    @property
    def rehearsal_weight(self) -> float:
        """Of one pseudo-device in the mean of deltas: ``weight`` times what a device with as many utterances has."""
        if self.rehearsal is None:
            return 0.0
        utterances = min(self.rehearsal.batch_size, self.weight_limit) if self.weighting == "utterances" else 1
        return self.rehearsal.weight * utterances

    @property
    def noisy(self) -> bool:
        """Whether deltas are noised, by the devices or by the server."""
        return self.deltas is not None and (self.deltas.noise_stddev > 0 or self.noise_multiplier > 0)

    @property
    def amplified(self) -> bool:
        """Whether the ledger charges the whole eligible population by amplified accounting."""
        return self.sampling is not None and self.sampling.amplified

    def denominator(self, eligible: int | None) -> float | None:
        """What the sum of deltas is divided by where that must not depend on who answered: q N of ``eligible`` devices
        where accounting is amplified, else the goal; None where it is the sum of the weights."""
        if self.amplified and self.sampling is not None:
            return max((self.sampling.rate or 1.0) * (eligible or 0), 1.0)
        return float(self.goal or 1) if self.noisy else None

    @property
    def streams(self) -> tuple[str, ...]:
        """What devices are asked for."""
        return tuple(stream for stream in STREAMS if getattr(self, stream) is not None)

    def _check_averaging(self, plan: DeltaPlan) -> None:
        if self.averaging != "mean" and self.weighting != "uniform":
            raise ValueError(f"weighting: devices count alike with averaging {self.averaging!r}; use 'uniform'")
        wanted = _MEASURES.get(self.weighting, "none")
        if plan.measure != wanted:
            needed = f"expected {wanted!r}, which weighting {self.weighting!r} needs"
            raise ValueError(f"deltas.measure: found {plan.measure!r}, {needed}")

    def _check_masked(self) -> None:
        """Of deltas that nobody sees: what would look at one of them cannot be."""
        if self.aggregated == "marginals":
            found = "found 'distributed' beside marginals of the same trust"
            raise ValueError(f"deltas.trust: {found}; a round adds up one stream by secure aggregation")
        if (self.averaging, self.weighting) != ("mean", "uniform"):
            found = f"found {self.averaging!r}, {self.weighting!r}"
            raise ValueError(f"averaging, weighting: {found}; deltas in sums count alike, use 'mean' and 'uniform'")
        if self.noise_multiplier:
            raise ValueError(
                "noise_multiplier: found the server's noise; with deltas.trust 'distributed' devices add it"
            )

    def _check_noise(self) -> None:
        plan = self.deltas
        assert plan is not None
        if self.averaging != "mean":
            raise ValueError(f"averaging: found {self.averaging!r}, whose noise is not accounted; use 'mean'")
        if self.weighting != "uniform":
            raise ValueError(f"weighting: weights by {self.weighting} depend on the data; with noise use 'uniform'")
        if self.goal is None and not self.amplified:
            raise ValueError("goal: with noise the denominator must be fixed before the round; give a goal")
        if 0 < self.noise_multiplier < SMALLEST_MULTIPLIER:
            raise ValueError(
                f"noise_multiplier: found {self.noise_multiplier:g}, which hides nothing; expected 0 for none, or at "
                f"least {SMALLEST_MULTIPLIER:g}"
            )
        if self.noise_multiplier and plan.noise_stddev:
            raise ValueError("noise_multiplier: found the server's noise and deltas.noise_stddev; expected one of them")
        if self.noise_multiplier and plan.encoding != "float32":
            raise ValueError(
                f"deltas.encoding: found {plan.encoding!r}, whose rounding may pass the clipping bound; where the "
                "server adds the noise use 'float32'"
            )

    def _check_sampling(self, plan: SamplingPlan) -> None:
        if self.goal is None and plan.rate is None:
            raise ValueError("sampling.rate, goal: found neither; expected a rate, or a goal to ask enough devices for")
        if not plan.amplified:
            return
        if self.goal is not None:
            taken = "an amplified round takes whoever was sampled until its deadline"
            raise ValueError(f"goal: found {self.goal}; {taken}")
        if self.minimum != 1:
            raise ValueError(f"minimum: found {self.minimum}; an amplified round releases however few answered, use 1")
        if self.marginals is not None and (self.marginals.trust, self.marginals.mode) != ("central", "bounded"):
            raise ValueError("marginals: amplification holds where the server adds the noise to bounded counts only")
        if self.words is not None:
            raise ValueError("words: found a plan in an amplified round; what their threshold costs is not amplified")
        if self.deltas is not None and not self.noise_multiplier:
            raise ValueError("noise_multiplier: found 0; amplified accounting of deltas needs the server's noise")


PRESETS: dict[str, RoundSettings] = {
    "rao-2023": RoundSettings(
        marginals=None,
        deltas=DeltaPlan(kind="gradient", batch_size=16),
        goal=400,
        minimum=400,
        weighting="uniform",
        optimizer=OptimizerSettings(kind="adam", learning_rate=1e-4, second_momentum=0.999, epsilon=1e-8),
        teacher=TeacherPlan(decay=0.999, interval=10),
        rehearsal=RehearsalPlan(pseudo_devices=40, batch_size=16),
        rounds=3000,
    )
}
"""Whole settings by name. rao-2023: FedSGD in a single pass, 400 devices and 40 pseudo-devices a round, 3,000 rounds,
batches of 16, Adam (Rao et al. 2023, section 3; the teacher as in the best row of table 5). The paper gives neither a
clipping bound nor Adam's settings: those are the usual ones."""


def check_groups(groups: GroupPlan, plan: MarginalPlan | DeltaPlan) -> None:
    """Raises ValueError for a plan that no group of this size can follow."""
    if groups.size < plan.minimum_survivors:
        raise ValueError(
            f"groups.size: found {groups.size}, expected at least minimum_survivors = {plan.minimum_survivors}"
        )
    try:
        widest = word_bits(plan, groups.size, MAX_WORDS)
    except PrivacyError as error:
        raise ValueError(str(error)) from error
    if widest > 64:
        raise ValueError(f"bits, noise_stddev: found sums of {widest} bits a value, expected at most 64")


def word_bits(plan: MarginalPlan | DeltaPlan, size: int, words: int) -> int:
    """b of the modulus 2^b: so many that a sum of ``size`` devices' deltas wraps around with a chance of
    :data:`device_sdk.privacy.quantised.WRAPS` at most; of counts 32 where their sum and its noise fits, else 64."""
    if isinstance(plan, DeltaPlan):
        return quantised.word_bits(plan, size, words)
    largest = weight_units(plan) + NOISE_DEVIATIONS * math.sqrt(share_variance(plan))
    return 32 if largest * size < 2**31 else 64


class RoundState(StrEnum):
    """The states of a round and the only ways between them.

    | state | what is true | leads to, when |
    |---|---|---|
    | planned | the settings are valid and stored; nothing is offered | open: the operator, or the round before ended |
    | open | the base is fixed, who is asked is drawn; reports are taken | closing: goal, deadline or operator |
    | closing | no more reports; noise has its key before it is drawn | aggregated; abandoned: too few, diverged |
    | aggregated | the release is stored, nobody has it; raw reports are gone | evaluated; abandoned: it hears worse |
    | evaluated | it may be published | published |
    | published | final: it is current, or with a rollout; the next round opens | |
    | abandoned | final: nothing is released, what was charged stays charged | |

    An operator may abandon every round that is not final. Every way is one transaction, with a line in ``transitions``;
    a report, its count and its charge are one, too, and so are a round's opening and the charge of everyone where
    accounting is amplified. A server that is killed goes on from the last way taken. A report after the goal or the
    deadline is answered 409 ``round_closed``, and its device puts the counts back on its books."""

    PLANNED = "planned"
    OPEN = "open"
    CLOSING = "closing"
    AGGREGATED = "aggregated"
    EVALUATED = "evaluated"
    PUBLISHED = "published"
    ABANDONED = "abandoned"


NEXT: dict[RoundState, tuple[RoundState, ...]] = {
    RoundState.PLANNED: (RoundState.OPEN, RoundState.ABANDONED),
    RoundState.OPEN: (RoundState.CLOSING, RoundState.ABANDONED),
    RoundState.CLOSING: (RoundState.AGGREGATED, RoundState.ABANDONED),
    RoundState.AGGREGATED: (RoundState.EVALUATED, RoundState.ABANDONED),
    RoundState.EVALUATED: (RoundState.PUBLISHED, RoundState.ABANDONED),
    RoundState.PUBLISHED: (),
    RoundState.ABANDONED: (),
}
UNDERWAY = tuple(state for state in RoundState if NEXT[state])
"""Every state that is not final."""


def check(source: RoundState, target: RoundState) -> None:
    """Raises Refusal (409) unless a round may go from ``source`` to ``target``."""
    if target not in NEXT[source]:
        allowed = ", ".join(NEXT[source]) or "nothing: it is final"
        raise Refusal(409, "wrong_state", f"round is {source}; it cannot become {target}, only {allowed}", "state")
