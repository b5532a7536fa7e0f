"""What an operator decides about one round, validated before the round exists."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.aggregation.optimizers import OptimizerSettings
from server.secure_aggregation.settings import GroupPlan, check_groups

__all__ = ["PRESETS", "STREAMS", "RehearsalPlan", "RoundSettings", "TeacherPlan"]

STREAMS = ("marginals", "deltas")


class TeacherPlan(BaseModel):
    """The teacher that is published beside the model: decay * teacher + (1 - decay) * model, taken after every
    ``interval`` models of a lineage (delta and u of paper 001, table 5); it begins as the model that the first round
    started from. Between, the teacher stays the same. decay 1 never updates it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    decay: Annotated[float, Field(ge=0, le=1)] = 0.999
    interval: Annotated[int, Field(ge=1)] = 10


class RehearsalPlan(BaseModel):
    """Pseudo-devices on the server, which learn from transcribed speech and count among the devices (paper 001, section
    3): so a model does not lose what it was trained on.

    pseudo_devices: how many a round. batch_size: utterances of each, at most; no utterance is drawn again before all
    have been. weight: of one pseudo-device, in devices. learning_rate: of its steps, where the round collects weight
    differences; gradients are taken without steps. seed: of the draws. What it sends is clipped like a device's and
    gets no noise: it tells nothing about a user.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    pseudo_devices: Annotated[int, Field(ge=1, le=1_000_000)] = 40
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 16
    weight: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    learning_rate: Annotated[float, Field(gt=0, le=1e3)] = 0.1
    seed: Annotated[int, Field(ge=0)] = 0


class RoundSettings(BaseModel):
    """Streams, cohort and aggregation of one round, and how many follow it.

    marginals, deltas: the plans devices follow; None leaves the stream out. goal: reports per stream at which the
    round closes by itself and beyond which it accepts none; None leaves closing to the deadline or the operator.
    minimum: a stream with fewer reports releases nothing. seconds: from opening to the deadline. smoothing: weight of
    the background in the published marginal, in words. weighting: of deltas in their mean; weight_limit: the largest
    number of utterances that counts. averaging: ``median`` of every value, or its mean without the ``trimmed`` share
    of the largest and of the smallest, which a minority of devices cannot pull far; devices count alike there.
    suppression: released counts below this many standard deviations are dropped, and below as many as noise alone may
    reach on a list of so many words; 0 keeps every positive count. teacher, rehearsal: what the server adds to rounds
    that collect deltas; None leaves it out. rounds: how many rounds like this one there are, with it; the next opens
    when this one ends, unless an operator abandons it, its model is refused, or another round is open. groups: of
    devices that add up their counts by secure aggregation, where the trust of ``marginals`` is ``distributed``;
    ``goal`` is then of devices that joined and have not dropped out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    marginals: MarginalPlan | None = MarginalPlan()
    deltas: DeltaPlan | None = None
    goal: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    minimum: Annotated[int, Field(ge=1, le=10_000_000)] = 1
    seconds: Annotated[float, Field(gt=0, le=366 * 86400)] = 86400.0
    smoothing: Annotated[float, Field(gt=0)] = 100.0
    suppression: Annotated[float, Field(ge=0)] = 3.0
    weighting: Literal["utterances", "uniform"] = "utterances"
    weight_limit: Annotated[int, Field(ge=1)] = 100
    averaging: Literal["mean", "median", "trimmed"] = "mean"
    trimmed: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    optimizer: OptimizerSettings = OptimizerSettings()
    teacher: TeacherPlan | None = None
    rehearsal: RehearsalPlan | None = None
    rounds: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    groups: GroupPlan = GroupPlan()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.marginals is None and self.deltas is None:
            raise ValueError("marginals, deltas: found neither; expected a plan for at least one stream")
        if self.goal is not None and self.goal < self.minimum:
            raise ValueError(f"goal: found {self.goal}, expected at least minimum = {self.minimum}")
        if self.marginals is not None and self.minimum < self.marginals.minimum_survivors:
            raise ValueError(
                f"minimum: found {self.minimum}, expected at least minimum_survivors = "
                f"{self.marginals.minimum_survivors}: the noise of fewer devices is too little"
            )
        if self.marginals is not None and self.aggregated:
            check_groups(self.groups, self.marginals)
        for plan in (self.marginals, self.deltas):
            for name, value in plan.model_dump().items() if plan is not None else ():
                if isinstance(value, float) and not value < 1e9:
                    raise ValueError(f"{name}: found {value!r}, expected a number below 1e9")
        for name in ("teacher", "rehearsal"):
            if self.deltas is None and getattr(self, name) is not None:
                raise ValueError(f"{name}: found a plan without one for deltas; expected a round that moves the model")
        if self.deltas is not None and self.averaging != "mean" and self.weighting != "uniform":
            raise ValueError(f"weighting: devices count alike in the {self.averaging}; use 'uniform'")
        if self.deltas is not None and self.deltas.noise_stddev > 0:
            if self.averaging != "mean":
                raise ValueError(f"averaging: the noise of a {self.averaging} is not accounted; with noise use 'mean'")
            if self.weighting != "uniform":
                raise ValueError("weighting: weights by utterances depend on the data; with noise use 'uniform'")
            if self.goal is None:
                raise ValueError("goal: with noise the denominator must be fixed before the round; give a goal")
        return self

    @property
    def aggregated(self) -> bool:
        """Whether counts are summed by secure aggregation, and taken in no other way."""
        return self.marginals is not None and self.marginals.trust == "distributed"

    @property
    def rehearsal_weight(self) -> float:
        """Of one pseudo-device in the mean of deltas: ``weight`` times what a device with as many utterances has."""
        if self.rehearsal is None:
            return 0.0
        utterances = min(self.rehearsal.batch_size, self.weight_limit) if self.weighting == "utterances" else 1
        return self.rehearsal.weight * utterances

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(stream for stream in STREAMS if getattr(self, stream) is not None)


PRESETS: dict[str, RoundSettings] = {
    "paper-001": RoundSettings(
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
"""Whole settings by name. paper-001: FedSGD in a single pass, 400 devices and 40 pseudo-devices a round, 3,000 rounds,
batches of 16, Adam (paper 001, section 3; the teacher as in the best row of table 5). The paper gives neither a
clipping bound nor Adam's settings: those are the usual ones."""
