"""What bringing back an older state must change in it, so that nothing is released twice and no name given twice.

The server that was lost may have gone on after its backup: it may have released the rounds that were under way then,
charged devices for more of them, and given versions and numbers that this state does not know. So a restored state

- ends every round that was under way, planned ones too: their reports are not drawn from again;
- charges every device, also those that enrol from now on, since the lost server may have known them, for as many
  rounds as it may have closed meanwhile, each as dear as the dearest that there ever was;
- goes on with marginals and rounds whose numbers are far above what the lost server can have reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import randbelow
from typing import Any

from sqlalchemy import Connection, Row, func, select

from server.devices.enrolment import eligible_at
from server.plans.round import STREAMS, UNDERWAY, RoundSettings, RoundState
from server.privacy.charges import Charge, charge_for
from server.privacy.composition import Spent, compose
from server.privacy.ledger import charge_population
from server.registry import marginals as marginal_registry
from server.registry.models import current_version, publish
from server.rounds.secure_aggregation.progress import abandon_groups
from server.rounds.store import create_round, find_round, read_settings, rounds_in, transition
from server.storage.schema import devices, marginals, publications, rounds

GAP = 1_000_000
"""Numbers that are left out, at least; up to twice as many, so that two restores of one backup differ."""
MOST = 1000
"""Rounds that are charged one by one; more than these are charged without a bound."""
FOREVER = 1e18
"""Seconds since the epoch until which those who enrol are charged, too."""
DELTA = 1e-6
"""At which charges are compared."""


@dataclass(frozen=True, slots=True)
class Fence:
    """saved_at: of the backup, seconds since the epoch. rounds: assumed to have been closed since; epsilon: by stream,
    what they are charged with. abandoned: ids of rounds that were under way. number: of the round that stands for the
    fence; marginals_version: the first after it, of the same values as the last before."""

    saved_at: float
    rounds: int
    epsilon: dict[str, float]
    abandoned: tuple[str, ...]
    number: int
    marginals_version: int


def raise_fence(connection: Connection, saved_at: float, now: float, rounds_since: int | None = None) -> Fence:
    """Change a state that was brought back, in the caller's transaction. saved_at: when it was saved. rounds_since: how
    many rounds were closed since, at most; None assumes it (:func:`assumed_rounds`)."""
    when = datetime.fromtimestamp(saved_at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    every = list(connection.execute(select(rounds).order_by(rounds.c.number)))
    underway = rounds_in(connection, *UNDERWAY)
    count = assumed_rounds(every, len(underway), saved_at, now) if rounds_since is None else rounds_since
    note = f"restored from a backup of {when}: what the server did with this round after it is not known"
    for row in underway:
        transition(connection, row, RoundState.ABANDONED, now, note)
        abandon_groups(connection, row.id, note)
    number = _beyond(max((row.number for row in every), default=0))
    round_id = _fence_round(connection, every, number, count, when, now)
    dearest = _largest_charges(every, count).items()
    epsilon = {stream: _charge(connection, round_id, stream, charge, count, now) for stream, charge in dearest}
    return Fence(saved_at, count, epsilon, tuple(row.id for row in underway), number, _marginals(connection, when, now))


def assumed_rounds(every: Sequence[Row[Any]], underway: int, saved_at: float, now: float) -> int:
    """As many rounds as were ever opened in so long a time as has passed since the backup, more where the server had
    not been there for so long, and besides those that were under way and one that may just have been opened."""
    opened = [row.opened_at for row in every if row.opened_at is not None]
    if not opened:
        return 0
    passed = max(0.0, now - saved_at)
    most, first = 0, 0
    for last, at in enumerate(opened):
        while at - opened[first] > passed:
            first += 1
        most = max(most, last + 1 - first)
    return math.ceil(most * max(1.0, passed / max(saved_at - opened[0], 1.0))) + underway + 1


def _beyond(number: int) -> int:
    return number + GAP + randbelow(GAP)


def _fence_round(
    connection: Connection, every: Sequence[Row[Any]], number: int, count: int, when: str, now: float
) -> str:
    """A round that was never open stands for those that are assumed: charges are of a round, and operators see it."""
    settings = read_settings(every[-1]) if every else RoundSettings()
    round_id = create_round(connection, settings.model_copy(update={"rounds": 1}), now, number)
    note = f"restored from a backup of {when}: every device is charged for {count} rounds that may have come after it"
    transition(connection, find_round(connection, round_id), RoundState.ABANDONED, now, note)
    return round_id


def _largest_charges(every: Sequence[Row[Any]], count: int) -> dict[str, Charge]:
    """By stream that any round had: the charge that costs most, so many times."""
    found: dict[str, Charge] = {}
    plans = {str(row.settings): read_settings(row) for row in every}
    for stream in STREAMS:
        charges = {charge_for(stream, settings) for settings in plans.values() if stream in settings.streams}
        if charges and count:
            found[stream] = max(charges, key=lambda charge: _cost(charge, count))
    return found


def _cost(charge: Charge, count: int) -> float:
    return math.inf if charge.unbounded else compose(Spent({charge: min(count, MOST)}), DELTA)[0]


def _charge(connection: Connection, round_id: str, stream: str, charge: Charge, count: int, now: float) -> float:
    """Charge every device for so many rounds. Returns their epsilon."""
    eligible = connection.execute(select(func.count()).select_from(devices).where(*eligible_at(now))).scalar_one()
    lines = count
    if count > MOST:
        lines, charge = 1, Charge(charge.mechanism, charge.trust, charge.sensitivity, charge.scale, unbounded=True)
    line: dict[str, Any] = {"round_id": round_id, "stream": stream, "charge": charge, "eligible": eligible}
    for draw in range(1, lines + 1):
        charge_population(connection, **line, eligible_at=now, now=now, draw=draw, until=FOREVER)
    return _cost(charge, count)


def _marginals(connection: Connection, when: str, now: float) -> int:
    """Publish the current marginals under a version that nobody has."""
    if connection.execute(select(publications.c.id).where(publications.c.kind == "marginals").limit(1)).first() is None:
        return 0
    row = marginal_registry.find_marginals(connection, int(current_version(connection, "marginals")))
    version = _beyond(int(connection.execute(select(func.max(marginals.c.version))).scalar_one()))
    entry = marginal_registry.MarginalEntry(
        row.words_digest, marginal_registry.read_probabilities(row), marginal_registry.read_counts(row), row.variance
    )
    note = f"marginals {row.version}, restored from a backup of {when}"
    marginal_registry.add_marginals(
        connection, version, entry, now=now, parent=row.version, figures=row.figures, note=note
    )
    publish(connection, "marginals", version, now, note)
    return version
