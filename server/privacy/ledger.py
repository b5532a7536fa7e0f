"""The privacy ledger: an append-only line per device, stream and accepted report, and totals that grow with it.

A line holds the mechanism and its parameters; it is written with what makes a release computable: the report itself, or
under secure aggregation the beginning of unmasking, whether or not a sum is taken then. Every accepted report is
charged in full; a round with amplified accounting charges everyone who was eligible instead, when it opens
(:func:`charge_population`). Lines of one device compose over rounds (:mod:`server.privacy.composition`), so the
figures bound what all releases together tell about one user, and about one utterance. A contribution without noise, or
without a bound, makes the stream's epsilon infinite from then on.

How often a device was charged for what is counted with every line, in the same transaction, and read from those totals:
lines may be of years. When a round is forgotten (:mod:`server.rounds.retention`) its lines go, and the totals stay."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import chain
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, func, insert, select, text

from server.devices.enrolment import eligible_at
from server.plans.round import STREAMS, RoundSettings
from server.privacy.charges import LEDGER_FIELDS, Charge, charge_for
from server.privacy.composition import Spent, compose, exchange, quick_bound
from server.problems import Refusal
from server.storage.schema import charged_rounds, devices, ledger, ledger_totals, population_charges

ADJACENCY = {
    "marginals": "user: all that one device reports added or removed, composed over its rounds",
    "words": "user: all words that one device names added or removed, composed over its rounds",
    "deltas": "user: one device's deltas replaced by zero, their noise kept, composed over its rounds",
}
UTTERANCE_ADJACENCY = {
    "marginals": (
        "utterance: one utterance added to what a device heard, or removed; it is reported in one round, where it may "
        "take the place of every other word"
    ),
    "words": (
        "utterance: one utterance whose words the user gave, or none; its words are named in one round, where they may "
        "take the place of all others"
    ),
    "deltas": (
        "utterance: one utterance added to what a device learns from, or removed; every delta from then on may be "
        "another one"
    ),
}
TRUST = {
    "central": "the server sees every contribution before the round's noise is added; devices trust it with that",
    "distributed": (
        "every device adds a share of the noise, and the server sees the sum of all reports only; epsilon holds "
        "against it as long as the smallest cohort's devices add what they should"
    ),
    "local": "noise is added on the device; the server sees only noised counts",
    "share": (
        "the server sees every delta with the device's own share of the noise; epsilon holds for whoever sees the "
        "published model, at the smallest cohort the round allows"
    ),
    "none": "no noise is added anywhere; the server and everyone who gets the model may learn from it",
}
SAMPLING = "none: every accepted report is charged in full, without amplification"
AMPLIFIED = (
    "Poisson, in rounds with amplified accounting: every eligible device is charged for being in the round with "
    "probability q, against all who cannot tell whom the server asked; every other accepted report in full"
)


DAY = 86_400.0


def record(
    connection: Connection,
    *,
    device_id: str,
    stream: str,
    round_id: str,
    report_id: str,
    charge: Charge,
    now: float,
    draw: int = 1,
) -> None:
    """Append the charge of an accepted report, in the caller's transaction. draw: which of the draws of noise that the
    report takes part in; there is a second one only where a round's reports changed after the first."""
    row = {name: getattr(charge, name) for name in LEDGER_FIELDS}
    row |= {"device_id": device_id, "stream": stream, "round_id": round_id, "report_id": report_id}
    # The day is enough: lines stay, and when a device reported is nobody's business.
    connection.execute(_APPEND, row | {"draw": draw, "charged_at": now // DAY * DAY})
    connection.execute(_COUNT, row)
    connection.execute(_MARK, row)


_APPEND = insert(ledger)
_KEY = ("device_id", "stream", *LEDGER_FIELDS)
# Both databases understand these; SQLAlchemy has a statement for each of them.
_COUNT = text(
    f"INSERT INTO ledger_totals ({', '.join(_KEY)}, times, settled) VALUES ({', '.join(f':{name}' for name in _KEY)}, "
    f"1, 0) ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET times = ledger_totals.times + 1"
)
_MARK = text("INSERT INTO charged_rounds (stream, round_id) VALUES (:stream, :round_id) ON CONFLICT DO NOTHING")


def settle(connection: Connection, report_ids: Sequence[str]) -> None:
    """Delete the lines of reports, which are of rounds that are forgotten; the totals say how many of theirs went."""
    own = ledger.c.report_id.in_(report_ids)
    if gone := connection.execute(_LINES.where(own)).mappings().all():
        connection.execute(_SETTLE, [dict(row) for row in gone])
        connection.execute(delete(ledger).where(own))


_LINES = select(*(ledger.c[name] for name in _KEY), func.count().label("n")).group_by(*(ledger.c[n] for n in _KEY))
_SETTLE = text(
    f"UPDATE ledger_totals SET settled = settled + :n WHERE {' AND '.join(f'{name} = :{name}' for name in _KEY)}"
)


def differences(connection: Connection) -> list[str]:
    """Where the totals do not say what the lines do, and how: nowhere, unless something but the server wrote there."""
    counted: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in connection.execute(_LINES):
        counted[tuple(row)[:-1]][0] = row.n
    for row in connection.execute(select(ledger_totals)):
        counted[tuple(row)[: len(_KEY)]][1] = row.times - row.settled
    return [
        f"device {key[0]}, {key[1]}: {lines} lines of {key[2]}, the total says {total}"
        for key, (lines, total) in sorted(counted.items())
        if lines != total
    ]


def spent(connection: Connection, device_id: str, stream: str) -> Spent:
    """What a device has spent in a stream so far."""
    own = Counter(
        {_charge(row): row.times for row in connection.execute(_SPENT, {"charged": device_id, "asked": stream})}
    )
    return Spent(own + spent_as_population(connection, device_id, stream))


_TOTALS = ledger_totals.c
_SPENT = select(ledger_totals).where(_TOTALS.device_id == bindparam("charged"), _TOTALS.stream == bindparam("asked"))


def check_population(connection: Connection, stream: str, charge: Charge, cap: float, delta: float, now: float) -> None:
    """Raises Refusal (409 ``privacy_cap``) where one more charge of everyone who is eligible at ``now`` would take any
    of them past the cap."""
    if math.isinf(cap):
        return
    query = select(_TOTALS.device_id).join(devices).where(_TOTALS.stream == stream, *eligible_at(now))
    candidates = {*connection.execute(query.distinct()).scalars(), first_enrolled(connection, now)} - {None}
    totals = _by_device(connection, stream)
    for total in largest_histories(totals.get((str(device_id), stream), Spent()) for device_id in candidates):
        if not _fits(total.plus(charge), cap, delta):
            passed = f"{stream}: a device that is eligible would pass the cap {cap:g}"
            detail = f"{passed}; an amplified round charges all of them, so ask for more noise or a smaller rate"
            raise Refusal(409, "privacy_cap", detail, stream)


def within(
    connection: Connection, device_id: str, stream: str, charges: Iterable[Charge], cap: float, delta: float
) -> bool:
    """Whether a device's epsilon in a stream stays within the cap with more charges; what is unknown does not."""
    if math.isinf(cap):
        return True
    return _fits(reduce(Spent.plus, charges, spent(connection, device_id, stream)), cap, delta)


def _fits(total: Spent, cap: float, delta: float) -> bool:
    return quick_bound(total, delta) <= cap or compose(total, delta)[0] <= cap


def largest_histories(histories: Iterable[Spent]) -> list[Spent]:
    """Those of the histories of which no other holds every charge as often: one of them has the largest epsilon, and
    thousands of devices share few of them."""
    distinct = {frozenset(total.charges.items()): total for total in histories}
    kept: list[Spent] = []
    for total in sorted(distinct.values(), key=lambda each: -each.rounds):
        if not any(all(other.charges.get(charge, 0) >= n for charge, n in total.charges.items()) for other in kept):
            kept.append(total)
    return kept


def device_summary(connection: Connection, delta: float) -> list[dict[str, Any]]:
    """One line per device and stream, the dearest first."""
    lines = [
        {"device_id": device_id, "stream": stream, **_levels(stream, total, delta), "rounds": total.rounds}
        for (device_id, stream), total in _by_device(connection).items()
    ]
    return sorted(lines, key=lambda line: (line["stream"], -line["epsilon"], line["device_id"]))


def summary(connection: Connection, delta: float) -> dict[str, dict[str, Any]]:
    """Per stream: the largest epsilons any device has spent, of a user, of an utterance and, where mode ``paper`` was
    used, of one count in all its releases; and what those numbers mean. A stream that was never used has epsilon 0 and
    no rounds."""
    totals = _by_device(connection)
    trusts = {(stream, charge.trust) for (_, stream), total in totals.items() for charge in total.charges}
    query = select(charged_rounds.c.stream, func.count().label("n")).group_by(charged_rounds.c.stream)
    rounds = Counter({row.stream: row.n for row in connection.execute(query)})
    amplified = count_population_rounds(connection)
    sampled = count_population_rounds(connection, sampled=True)
    streams: dict[str, dict[str, Any]] = {}
    for stream in STREAMS:
        own = [total for (_, name), total in totals.items() if name == stream]
        levels = [_levels(stream, total, delta) for total in largest_histories(own)]
        labels = sorted({trust for name, trust in trusts if name == stream})
        counts = [line["count_epsilon"] for line in levels if line["count_epsilon"] is not None]
        streams[stream] = {
            **_worst(levels, "epsilon", "delta"),
            **_worst(levels, "utterance_epsilon", "utterance_delta"),
            "count_epsilon": max(counts, default=None),
            "adjacency": ADJACENCY[stream],
            "utterance_adjacency": UTTERANCE_ADJACENCY[stream],
            "sampling": AMPLIFIED if sampled[stream] else SAMPLING,
            "trust_model": "; ".join(f"{label}: {TRUST[label]}" for label in labels) or "unused",
            "rounds": rounds[stream] + amplified[stream],
            "devices": len(own),
        }
    return streams


def _levels(stream: str, total: Spent, delta: float) -> dict[str, Any]:
    """Epsilon and delta of a user and of an utterance. An utterance is in one report of counts and in one of words,
    and in every delta."""
    epsilon, used = compose(total, delta)
    others = Spent(dict(zip(exchange(total.charges), total.charges.values(), strict=True)))
    parts = [Spent({charge: 1}) for charge in others.charges] if stream != "deltas" else [others]
    utterance = max((compose(part, delta) for part in parts), default=(0.0, 0.0))
    return {
        "epsilon": epsilon,
        "delta": used,
        "utterance_epsilon": utterance[0],
        "utterance_delta": utterance[1],
        "count_epsilon": total.count_epsilon,
    }


def _worst(levels: list[dict[str, Any]], epsilon: str, delta: str) -> dict[str, float]:
    worst = max(levels, key=lambda line: float(line[epsilon]), default={epsilon: 0.0, delta: 0.0})
    return {epsilon: worst[epsilon], delta: worst[delta]}


def _by_device(connection: Connection, stream: str | None = None) -> dict[tuple[str, str], Spent]:
    """(device, stream) -> what it has spent; of one stream or of all."""
    found: defaultdict[tuple[str, str], Counter[Charge]] = defaultdict(Counter)
    query = select(ledger_totals) if stream is None else select(ledger_totals).where(_TOTALS.stream == stream)
    for row in connection.execute(query):
        found[row.device_id, row.stream][_charge(row)] = row.times
    totals = {key: Spent(charges) for key, charges in found.items()}
    shared: dict[int, Spent] = {}
    for key, charges in population_by_device(connection).items():
        if key in found:
            totals[key] = Spent(found[key] + charges)
        else:  # as many others have it: one object for all of them
            totals[key] = shared.setdefault(id(charges), Spent(charges))
    return totals


def _charge(row: Any, names: Sequence[str] = LEDGER_FIELDS) -> Charge:
    return Charge(**{name: getattr(row, name) for name in names})


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
    """Append one line, in the caller's transaction, for everyone who was eligible when an amplified round opened.

    Who was asked must stay unknown for the amplification to hold, so nobody is charged for having been asked: the whole
    population is, whether its devices report or not and whatever becomes of the round. Who that is follows from when
    devices were enrolled and revoked, so a million devices take one line. The ``eligible`` devices that there were at
    ``eligible_at``, when the round opened, are charged. draw: 1 then, one more for every other draw of the round's
    noise. until: devices that enrol later, up to then, are charged, too."""
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
    return Counter({_charge(row, _PARAMETERS): row.times for row in connection.execute(query)})


def population_by_device(connection: Connection) -> dict[tuple[str, str], Counter[Charge]]:
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
                histories[own][row.stream][_charge(row, _PARAMETERS)] += 1
        for stream, charges in histories[own].items():
            found[device.id, stream] = charges
    return found


def first_enrolled(connection: Connection, now: float) -> str | None:
    """The eligible device that has been there longest: whatever others were charged as population, it was, too."""
    query = select(devices.c.id).where(*eligible_at(now)).order_by(devices.c.enrolled_at, devices.c.id).limit(1)
    found: str | None = connection.execute(query).scalar()
    return found


def count_population_rounds(connection: Connection, *, sampled: bool = False) -> Counter[str]:
    """Stream -> how many rounds charged the population for it. sampled: only those that asked a sample of it; others
    stand for what a restored server does not know."""
    rounds = func.count(population_charges.c.round_id.distinct()).label("n")
    query = select(population_charges.c.stream, rounds).group_by(population_charges.c.stream)
    if sampled:
        query = query.where(population_charges.c.until.is_(None))
    return Counter({row.stream: row.n for row in connection.execute(query)})


@dataclass(frozen=True, slots=True)
class Caps:
    """The largest epsilon a device may spend in each stream, at ``delta``; a stream without one has no bound."""

    delta: float = 1e-6
    streams: dict[str, float] = field(default_factory=dict)

    def of(self, stream: str) -> float:
        return self.streams.get(stream, float("inf"))

    def allow(
        self, connection: Connection, device_id: str, stream: str, settings: RoundSettings, due: Iterable[Charge] = ()
    ) -> bool:
        """Whether a device may report in a stream of a round once more. Where accounting is amplified it may: it was
        charged when the round opened. due: what it will be charged in this stream besides, asked for where a cap is."""
        charges = chain((charge_for(stream, settings),), due)
        return settings.amplified or within(connection, device_id, stream, charges, self.of(stream), self.delta)

    def charge_all(
        self,
        connection: Connection,
        round_id: str,
        streams: Iterable[str],
        settings: RoundSettings,
        now: float,
        *,
        eligible: int,
        eligible_at: float,
        draw: int = 1,
    ) -> None:
        """Charge all who may be asked for streams of an amplified round, or nobody: Refusal (409 ``privacy_cap``)."""
        charges = {stream: charge_for(stream, settings) for stream in streams}
        for stream, charge in charges.items():
            check_population(connection, stream, charge, self.of(stream), self.delta, eligible_at)
        whom: dict[str, Any] = {"round_id": round_id, "eligible": eligible, "eligible_at": eligible_at}
        for stream, charge in charges.items():
            charge_population(connection, stream=stream, charge=charge, now=now, draw=draw, **whom)
