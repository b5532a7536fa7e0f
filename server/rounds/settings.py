"""What an operator decides about one round, validated before the round exists."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.aggregation.optimizers import OptimizerSettings

__all__ = ["STREAMS", "RoundSettings"]

STREAMS = ("marginals", "deltas")


class RoundSettings(BaseModel):
    """Streams, cohort and aggregation of one round.

    marginals, deltas: the plans devices follow; None leaves the stream out. goal: reports per stream at which the round
    closes by itself and beyond which it accepts none; None leaves closing to the deadline or the operator. minimum: a
    stream with fewer reports releases nothing. seconds: from opening to the deadline. smoothing: weight of the
    background in the published marginal, in words. weighting: of deltas in their mean; weight_limit: the largest
    number of utterances that counts. suppression: released counts below this many standard deviations are dropped.
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
    optimizer: OptimizerSettings = OptimizerSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.marginals is None and self.deltas is None:
            raise ValueError("marginals, deltas: found neither; expected a plan for at least one stream")
        if self.goal is not None and self.goal < self.minimum:
            raise ValueError(f"goal: found {self.goal}, expected at least minimum = {self.minimum}")
        for plan in (self.marginals, self.deltas):
            for name, value in plan.model_dump().items() if plan is not None else ():
                if isinstance(value, float) and not value < 1e9:
                    raise ValueError(f"{name}: found {value!r}, expected a number below 1e9")
        if self.deltas is not None and self.deltas.noise_stddev > 0:
            if self.weighting != "uniform":
                raise ValueError("weighting: weights by utterances depend on the data; with noise use 'uniform'")
            if self.goal is None:
                raise ValueError("goal: with noise the denominator must be fixed before the round; give a goal")
        return self

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(stream for stream in STREAMS if getattr(self, stream) is not None)
