"""Which devices a round asks: a secret draw for each of them, made anew in every round.

The draw of a device is a keyed hash of its id, so a fleet of a million needs no list: the round's key and a threshold
say of every device whether it was asked, then and later. The key comes from the system's generator and never leaves the
server, since amplification holds only for those who cannot tell who was asked.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterable
from fractions import Fraction
from secrets import token_bytes
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator
from sqlalchemy import Connection, Row, func, or_, select

from server.problems import Refusal
from server.storage.schema import devices

__all__ = ["SPACE", "Sample", "SamplingPlan", "check_sampled", "draw", "is_sampled", "new_sample"]

SPACE = 1 << 62
"""Draws are whole numbers below this."""


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


class Sample(BaseModel):
    """A round's draw. key: 32 secret bytes; threshold: draws below it are asked; eligible: devices there were."""

    model_config = ConfigDict(frozen=True)
    key: bytes
    threshold: int
    eligible: int


def draw(key: bytes, device_id: str) -> int:
    """A device's number in a round, uniform in [0, SPACE): HMAC-SHA-256 of its id."""
    return int.from_bytes(hmac.digest(key, device_id.encode(), "sha256")[:8], "big") >> 2


def new_sample(connection: Connection, plan: SamplingPlan, goal: int | None, now: float) -> Sample:
    """A fresh draw over who is eligible at ``now``, seconds since the epoch."""
    key = token_bytes(32)
    eligible = int(connection.execute(select(func.count()).select_from(devices).where(*eligible_at(now))).scalar_one())
    wanted = math.ceil((goal or 0) * plan.over_selection)
    if plan.kind == "fixed":
        ids = connection.execute(select(devices.c.id).where(*eligible_at(now))).yield_per(10_000).scalars()
        return Sample(key=key, threshold=_threshold_of(key, ids, wanted), eligible=eligible)
    rate = Fraction(plan.rate) if plan.rate is not None else Fraction(min(wanted, eligible), max(eligible, 1))
    return Sample(key=key, threshold=int(rate * SPACE), eligible=eligible)


def eligible_at(opened_at: Any, until: Any = None) -> tuple[Any, ...]:
    """Conditions on :data:`devices` for who was eligible when a round opened. until: of a charge of those who enrolled
    later, too."""
    return (
        devices.c.enrolled_at <= (opened_at if until is None else func.coalesce(until, opened_at)),
        or_(devices.c.revoked_at.is_(None), devices.c.revoked_at >= opened_at),
    )


def is_sampled(connection: Connection, row: Row[Any], device_id: str) -> bool:
    """Whether a round asks a device; without sampling, it asks all."""
    if row.sampling_key is None:
        return True
    if draw(row.sampling_key, device_id) >= row.sampling_threshold:
        return False
    query = select(devices.c.id).where(devices.c.id == device_id, *eligible_at(row.opened_at))
    return connection.execute(query).first() is not None


def check_sampled(connection: Connection, row: Row[Any], device_id: str) -> None:
    """Raises Refusal (409 ``not_sampled``) unless the round asks the device."""
    if not is_sampled(connection, row, device_id):
        raise Refusal(409, "not_sampled", f"round {row.id} did not ask this device; a later one may", "device_id")


def _threshold_of(key: bytes, ids: Iterable[str], size: int) -> int:
    """Below which the ``size`` smallest draws lie, all of them where there are fewer."""
    draws = np.fromiter((draw(key, device_id) for device_id in ids), np.int64)
    return int(np.partition(draws, size - 1)[size - 1]) + 1 if draws.size > size else SPACE
