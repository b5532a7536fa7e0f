"""The privacy ledger: an append-only line per device, stream and accepted report.

A line holds the mechanism and its parameters. Every accepted report is charged in full, unamplified: no sampling
assumption is made. A round with amplified accounting charges everyone who was eligible instead, when it opens
(:mod:`server.privacy.population`). Lines of one device compose over rounds (see :mod:`server.privacy.composition`), so
the figures bound what all releases together tell about one user, and about one utterance. A contribution without
noise, or without a bound, makes the stream's epsilon infinite from then on.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select

from server.privacy import population
from server.privacy.charges import LEDGER_FIELDS, Charge
from server.privacy.composition import Spent, compose, exchanged, quick_bound
from server.problems import Refusal
from server.rounds.sampling import eligible_at
from server.rounds.settings import STREAMS
from server.storage.schema import devices, ledger

__all__ = ["check_population", "device_summary", "record", "spent", "summary", "within"]

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
    connection.execute(_APPEND, row | {"draw": draw, "charged_at": now})


_APPEND = insert(ledger)


def spent(connection: Connection, device_id: str, stream: str) -> Spent:
    """What a device has spent in a stream so far."""
    query = _charges().where(ledger.c.device_id == device_id, ledger.c.stream == stream)
    own = Counter({_charge(row): row.times for row in connection.execute(query)})
    return Spent(own + population.spent_as_population(connection, device_id, stream))


def check_population(connection: Connection, stream: str, charge: Charge, cap: float, delta: float, now: float) -> None:
    """Raises Refusal (409 ``privacy_cap``) where one more charge of everyone who is eligible at ``now`` would take any
    of them past the cap: an amplified round asks all or none of them."""
    if math.isinf(cap):
        return
    query = select(ledger.c.device_id).join(devices).where(ledger.c.stream == stream, *eligible_at(now)).distinct()
    candidates = {*connection.execute(query).scalars(), population.first_enrolled(connection, now)} - {None}
    for device_id in candidates:
        if not within(connection, device_id, stream, charge, cap, delta):
            detail = (
                f"{stream}: a device that is eligible would pass the cap {cap:g}; an amplified round charges all of "
                "them, so ask for more noise or a smaller rate"
            )
            raise Refusal(409, "privacy_cap", detail, stream)


def within(connection: Connection, device_id: str, stream: str, charge: Charge, cap: float, delta: float) -> bool:
    """Whether a device's epsilon in a stream stays within the cap with one more charge; what is unknown does not."""
    if math.isinf(cap):
        return True
    total = spent(connection, device_id, stream).plus(charge)
    return quick_bound(total, delta) <= cap or compose(total, delta)[0] <= cap


def device_summary(connection: Connection, delta: float) -> list[dict[str, Any]]:
    """One line per device and stream, the dearest first."""
    lines = [
        {"device_id": device_id, "stream": stream, **_levels(stream, total, delta), "rounds": total.rounds}
        for (device_id, stream), total in _by_device(connection).items()
    ]
    return sorted(lines, key=lambda line: (line["stream"], -line["epsilon"], line["device_id"]))


def summary(connection: Connection, delta: float) -> dict[str, dict[str, Any]]:
    """Per stream: the largest epsilons any device has spent, and what those numbers mean.

    epsilon, delta: of a user; utterance_epsilon, utterance_delta: of an utterance; count_epsilon: of one count in all
    releases of mode ``paper``, None without them. A stream that was never used has epsilon 0 and no rounds.
    """
    totals = _by_device(connection)
    query = select(ledger.c.stream, ledger.c.trust, ledger.c.round_id).distinct()
    used = [(row.stream, row.trust, row.round_id) for row in connection.execute(query)]
    amplified = population.lines(connection)
    used += [(row.stream, row.trust, row.round_id) for row in amplified]
    streams: dict[str, dict[str, Any]] = {}
    for stream in STREAMS:
        # Thousands of devices share few histories.
        own = [total for (_, name), total in totals.items() if name == stream]
        levels = [_levels(stream, total, delta) for total in {id(total): total for total in own}.values()]
        labels = sorted({trust for name, trust, _ in used if name == stream})
        counts = [line["count_epsilon"] for line in levels if line["count_epsilon"] is not None]
        streams[stream] = {
            **_worst(levels, "epsilon", "delta"),
            **_worst(levels, "utterance_epsilon", "utterance_delta"),
            "count_epsilon": max(counts, default=None),
            "adjacency": ADJACENCY[stream],
            "utterance_adjacency": UTTERANCE_ADJACENCY[stream],
            "sampling": AMPLIFIED if any(row.stream == stream for row in amplified) else SAMPLING,
            "trust_model": "; ".join(f"{label}: {TRUST[label]}" for label in labels) or "unused",
            "rounds": len({round_id for name, _, round_id in used if name == stream}),
            "devices": len(own),
        }
    return streams


def _levels(stream: str, total: Spent, delta: float) -> dict[str, Any]:
    """Epsilon and delta of a user and of an utterance. An utterance is in one report of counts and in one of words,
    and in every delta."""
    epsilon, used = compose(total, delta)
    others = Spent(dict(zip(exchanged(total.charges), total.charges.values(), strict=True)))
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


def _by_device(connection: Connection) -> dict[tuple[str, str], Spent]:
    found: defaultdict[tuple[str, str], Counter[Charge]] = defaultdict(Counter)
    for row in connection.execute(_charges(ledger.c.device_id, ledger.c.stream)):
        found[row.device_id, row.stream][_charge(row)] = row.times
    totals = {key: Spent(charges) for key, charges in found.items()}
    shared: dict[int, Spent] = {}
    for key, charges in population.by_device(connection).items():
        if key in found:
            totals[key] = Spent(found[key] + charges)
        else:  # as many others have it: one object for all of them
            totals[key] = shared.setdefault(id(charges), Spent(charges))
    return totals


def _charges(*keys: Any) -> Any:
    columns = [*keys, *(ledger.c[name] for name in LEDGER_FIELDS)]
    return select(*columns, func.count().label("times")).group_by(*columns)


def _charge(row: Row[Any]) -> Charge:
    return Charge(**{name: getattr(row, name) for name in LEDGER_FIELDS})
