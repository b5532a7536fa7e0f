"""Charges of amplified rounds: one line a round and stream, for everyone who was eligible when it opened.

Who was asked must stay unknown for the amplification to hold, so nobody is charged for having been asked: the whole
population is, when the round opens, whether its devices report or not and whatever becomes of the round. Who that is
follows from when devices were enrolled and revoked, so a million devices take one line. Append-only like the ledger."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, and_, func, insert, select

from server.devices.enrolment import eligible_at
from server.privacy.charges import LEDGER_FIELDS, Charge
from server.storage.schema import devices, population_charges

_PARAMETERS = (*LEDGER_FIELDS, "sampling")


def charge_population(
    connection: Connection,
    *,
    round_id: str,
    stream: str,
    charge: Charge,
    eligible: int,
    eligible_at: float,
    now: float,
    draw: int = 1,
    until: float | None = None,
) -> None:
    """Append one line, in the caller's transaction: the ``eligible`` devices that there were at ``eligible_at``, when
    the round opened, are charged. draw: 1 then, one more for every other draw of the round's noise. until: devices that
    enrol later, up to then, are charged, too."""
    values = {name: value for name, value in asdict(charge).items() if name in _PARAMETERS}
    row = values | {"round_id": round_id, "stream": stream, "eligible": eligible, "draw": draw}
    connection.execute(insert(population_charges).values(**row, eligible_at=eligible_at, until=until, charged_at=now))


def spent_as_population(connection: Connection, device_id: str, stream: str) -> Counter[Charge]:
    """Charges of the rounds that a device was eligible for, and how often each was made."""
    charges = population_charges.c
    columns = [charges[name] for name in _PARAMETERS]
    query = (
        select(*columns, func.count().label("times"))
        .select_from(population_charges.join(devices, and_(*eligible_at(charges.eligible_at, charges.until))))
        .where(devices.c.id == device_id, charges.stream == stream)
        .group_by(*columns)
    )
    return Counter({_charge(row): row.times for row in connection.execute(query)})


def by_device(connection: Connection) -> dict[tuple[str, str], Counter[Charge]]:
    """(device, stream) -> what it was charged as one of the population; empty without amplified rounds."""
    found: dict[tuple[str, str], Counter[Charge]] = {}
    rounds = connection.execute(select(population_charges).order_by(population_charges.c.id)).all()
    if not rounds:
        return found
    histories: dict[tuple[int, ...], defaultdict[str, Counter[Charge]]] = {}
    for device in connection.execute(select(devices.c.id, devices.c.enrolled_at, devices.c.revoked_at)):
        own = tuple(
            index
            for index, row in enumerate(rounds)
            if device.enrolled_at <= (row.eligible_at if row.until is None else row.until)
            and (device.revoked_at is None or device.revoked_at >= row.eligible_at)
        )
        if own not in histories:  # a million devices share few of them
            histories[own] = defaultdict(Counter)
            for row in (rounds[index] for index in own):
                histories[own][row.stream][_charge(row)] += 1
        for stream, charges in histories[own].items():
            found[device.id, stream] = charges
    return found


def first_enrolled(connection: Connection, now: float) -> str | None:
    """The eligible device that has been there longest: whatever others were charged as population, it was, too."""
    query = select(devices.c.id).where(*eligible_at(now)).order_by(devices.c.enrolled_at, devices.c.id).limit(1)
    found: str | None = connection.execute(query).scalar()
    return found


def charged_rounds(connection: Connection, *, sampled: bool = False) -> Counter[str]:
    """Stream -> how many rounds charged the population for it. sampled: only those that asked a sample of it; others
    stand for what a restored server does not know."""
    rounds = func.count(population_charges.c.round_id.distinct()).label("n")
    query = select(population_charges.c.stream, rounds).group_by(population_charges.c.stream)
    if sampled:
        query = query.where(population_charges.c.until.is_(None))
    return Counter({row.stream: row.n for row in connection.execute(query)})


def _charge(row: Any) -> Charge:
    return Charge(**{name: getattr(row, name) for name in _PARAMETERS})
