"""Which devices a round asks: a secret draw for each of them, made anew in every round.

The draw of a device is a keyed hash of its id, so a fleet of a million needs no list: the round's key and a threshold
say of every device whether it was asked, then and later. The key comes from the system's generator and never leaves the
server, since amplification holds only for those who cannot tell who was asked."""

import hmac
import math
from collections.abc import Iterable
from fractions import Fraction
from secrets import token_bytes
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, Row, func, select

from server.devices.enrolment import eligible_at
from server.plans.round import SamplingPlan
from server.problems import Refusal
from server.storage.schema import devices

SPACE = 1 << 62
"""Draws are whole numbers below this."""


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
