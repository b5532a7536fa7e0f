"""What an operator decides about who is asked in a round."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["SamplingPlan"]


class SamplingPlan(BaseModel):
    """How a round chooses among the eligible devices: those enrolled, and not revoked, when it opens.

    kind: ``poisson`` asks each on its own with probability ``rate``; ``fixed`` asks so many. rate: q; None asks for
    ``over_selection`` times the round's goal, on the average or exactly. over_selection: asks more devices than the
    goal needs, for those that do not answer. amplified: the ledger charges every eligible device for the release, asked
    or not, by what sampling leaves of its privacy loss, instead of each that reports in full. That needs Poisson
    sampling at a stated rate, a release that does not depend on how many answered, and no over-selection.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: Literal["poisson", "fixed"] = "poisson"
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    over_selection: Annotated[float, Field(ge=1, le=100)] = 1.0
    amplified: bool = False

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kind == "fixed" and self.rate is not None:
            raise ValueError(
                f"rate: found {self.rate}; fixed sampling asks over_selection times the goal, so leave it out"
            )
        if self.rate is not None and self.over_selection != 1:
            raise ValueError(f"over_selection: found {self.over_selection} beside a rate; expected one of them")
        if self.amplified and self.kind != "poisson":
            raise ValueError(f"kind: found {self.kind!r}; amplified accounting needs 'poisson'")
        if self.amplified and self.over_selection != 1:
            raise ValueError(f"over_selection: found {self.over_selection}; amplified accounting forbids it")
        if self.amplified and self.rate is None:
            raise ValueError(
                "rate: found none; amplified accounting needs the probability of every device to be stated"
            )
        return self
