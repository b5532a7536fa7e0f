"""What an operator decides about groups of devices that add up their counts together."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import share_variance, weight_units
from device_sdk.wire.messages import MarginalPlan
from device_sdk.wire.secure_aggregation import MAX_MEMBERS

__all__ = ["GroupPlan", "check_groups", "group_minimum", "word_bits"]

NOISE_DEVIATIONS = 16.0
"""How far one device's noise may lie from zero, in standard deviations: a word passes it once in 10^56 draws."""


class GroupPlan(BaseModel):
    """How a round whose trust is ``distributed`` forms its groups.

    size: devices in a group; what a device computes and sends grows with it, so a round of thousands is many groups.
    The last group may be smaller. stage_seconds: how long a group waits at each stage for those who have not answered;
    it must be longer than devices take between two check-ins.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    size: Annotated[int, Field(ge=2, le=MAX_MEMBERS)] = 50
    stage_seconds: Annotated[float, Field(gt=0, le=366 * 86400)] = 3600.0


def check_groups(groups: GroupPlan, plan: MarginalPlan) -> None:
    """Raises ValueError for a plan that no group of this size can follow."""
    if groups.size < plan.minimum_survivors:
        raise ValueError(
            f"groups.size: found {groups.size}, expected at least minimum_survivors = {plan.minimum_survivors}"
        )
    try:
        share_variance(plan)
    except PrivacyError as error:
        raise ValueError(str(error)) from error


def group_minimum(plan: MarginalPlan) -> int:
    """The fewest devices whose sum may be revealed: those whose shares are all of the noise, and never one alone."""
    return max(2, plan.minimum_survivors)


def word_bits(plan: MarginalPlan, size: int) -> Literal[32, 64]:
    """k of the modulus 2^k: 32 where the sum of ``size`` devices' counts and noise fits, else 64."""
    largest = weight_units(plan) + NOISE_DEVIATIONS * math.sqrt(share_variance(plan))
    return 32 if largest * size < 2**31 else 64
