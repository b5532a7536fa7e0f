"""The privacy ledger: an append-only line per device, stream and accepted report.

Every accepted report is charged in full, unamplified: no sampling assumption is made. Adjacency is the device's whole
contribution to a round (user-round); lines of one device compose over rounds, so the figures bound what all releases
together tell about one user. Pure epsilons add up; Gaussian mechanisms compose exactly (see
:mod:`server.privacy.gaussian`); a contribution without noise makes the stream's epsilon infinite from then on.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, func, insert, select

from device_sdk.privacy.contributions import l1_sensitivity
from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.privacy.gaussian import gaussian_epsilon
from server.privacy.laplace import laplace_scale
from server.rounds.settings import STREAMS, RoundSettings
from server.storage.schema import ledger

__all__ = ["Charge", "Spent", "charge_for", "compose", "device_summary", "record", "spent", "summary"]

ADJACENCY = {
    "marginals": (
        "user: one device's whole contribution to a round added or removed, composed over its rounds; an utterance "
        "belongs to one round, so utterance-level loss is at most utterance_epsilon"
    ),
    "deltas": (
        "user: one device's delta of a round replaced by zero, its noise kept, composed over its rounds; an utterance "
        "that is learned from again in later rounds has no smaller bound than its user"
    ),
}
TRUST = {
    "central": "the server sees every contribution before the round's noise is added; devices trust it with that",
    "local": "noise is added on the device; the server sees only noised counts",
    "share": (
        "the server sees every delta with the device's own share of the noise; epsilon holds for whoever sees the "
        "published model, at the smallest cohort the round allows"
    ),
    "none": "no noise is added anywhere; the server and everyone who gets the model may learn from it",
}
SAMPLING = "none: every accepted report is charged in full, without amplification"


@dataclass(frozen=True, slots=True)
class Charge:
    """What one report costs. epsilon: of a pure mechanism; squared_ratio: (sensitivity / noise)^2 of a Gaussian one."""

    mechanism: str
    trust: str
    sensitivity: float
    scale: float
    epsilon: float = 0.0
    squared_ratio: float = 0.0
    unbounded: bool = False


@dataclass(frozen=True, slots=True)
class Spent:
    """Composed cost of several charges."""

    epsilon: float = 0.0
    squared_ratio: float = 0.0
    unbounded: bool = False
    rounds: int = 0

    def plus(self, charge: Charge) -> Spent:
        return Spent(
            self.epsilon + charge.epsilon,
            self.squared_ratio + charge.squared_ratio,
            self.unbounded or charge.unbounded,
            self.rounds + 1,
        )


def charge_for(stream: str, settings: RoundSettings) -> Charge:
    """The cost of one report in a round, known before the round opens."""
    if stream == "marginals":
        return _marginal_charge(settings.marginals or MarginalPlan())
    return _delta_charge(settings.deltas or DeltaPlan(), settings.minimum)


def compose(total: Spent, delta: float) -> tuple[float, float]:
    """(epsilon, delta) of everything spent. Pure mechanisms alone need no delta: it is 0 for them."""
    values = (total.epsilon, total.squared_ratio)
    if total.unbounded or any(not math.isfinite(value) or value < 0 for value in values):
        return math.inf, 0.0  # a line that makes no sense is the worst line: the ledger fails closed
    if total.squared_ratio == 0:
        return total.epsilon, 0.0
    return total.epsilon + gaussian_epsilon(math.sqrt(total.squared_ratio), delta), delta


def record(
    connection: Connection, *, device_id: str, stream: str, round_id: str, report_id: str, charge: Charge, now: float
) -> None:
    """Append the charge of an accepted report, in the caller's transaction."""
    row = asdict(charge) | {"device_id": device_id, "stream": stream, "round_id": round_id, "report_id": report_id}
    connection.execute(insert(ledger).values(**row, charged_at=now))


def spent(connection: Connection, device_id: str, stream: str) -> Spent:
    """What a device has spent in a stream so far."""
    row = connection.execute(
        _totals(ledger.c.device_id).where(ledger.c.device_id == device_id, ledger.c.stream == stream)
    ).first()
    return _spent(row) if row is not None else Spent()


def device_summary(connection: Connection, delta: float) -> list[dict[str, Any]]:
    """One line per device and stream, the dearest first."""
    lines: list[dict[str, Any]] = []
    for row in connection.execute(_totals(ledger.c.device_id, ledger.c.stream)):
        epsilon, used = compose(_spent(row), delta)
        lines.append(
            {"device_id": row.device_id, "stream": row.stream, "epsilon": epsilon, "delta": used, "rounds": row.rounds}
        )
    return sorted(lines, key=lambda line: (line["stream"], -line["epsilon"], line["device_id"]))


def summary(connection: Connection, delta: float) -> dict[str, dict[str, Any]]:
    """Per stream: the largest epsilon any device has spent, and what that number means.

    A stream that was never used has epsilon 0 and no rounds.
    """
    lines = device_summary(connection, delta)
    streams: dict[str, dict[str, Any]] = {}
    for stream in STREAMS:
        own = [line for line in lines if line["stream"] == stream]
        worst = max(own, key=lambda line: float(line["epsilon"]), default=None)
        facts = connection.execute(
            select(
                func.count(func.distinct(ledger.c.round_id)).label("rounds"),
                func.max(ledger.c.epsilon).label("utterance"),
            ).where(ledger.c.stream == stream)
        ).one()
        trusts = connection.execute(
            select(ledger.c.trust).where(ledger.c.stream == stream).distinct().order_by(ledger.c.trust)
        ).scalars()
        labels = [str(label) for label in trusts]
        streams[stream] = {
            "epsilon": worst["epsilon"] if worst else 0.0,
            "delta": worst["delta"] if worst else 0.0,
            "adjacency": ADJACENCY[stream],
            "sampling": SAMPLING,
            "trust_model": "; ".join(f"{label}: {TRUST[label]}" for label in labels) or "unused",
            "rounds": facts.rounds,
            "devices": len(own),
            "utterance_epsilon": facts.utterance or 0.0 if stream == "marginals" else None,
        }
    return streams


def _marginal_charge(plan: MarginalPlan) -> Charge:
    return Charge("discrete_laplace", plan.trust, l1_sensitivity(plan), laplace_scale(plan), epsilon=plan.epsilon)


def _delta_charge(plan: DeltaPlan, minimum: int) -> Charge:
    total = plan.noise_stddev * math.sqrt(minimum)
    if total == 0:
        return Charge("none", "none", plan.clip_norm, 0.0, unbounded=True)
    return Charge("gaussian", "share", plan.clip_norm, total, squared_ratio=(plan.clip_norm / total) ** 2)


def _totals(*keys: Any) -> Any:
    return select(
        *keys,
        func.sum(ledger.c.epsilon).label("epsilon"),
        func.sum(ledger.c.squared_ratio).label("squared_ratio"),
        func.max(ledger.c.unbounded).label("unbounded"),
        func.count().label("rounds"),
    ).group_by(*keys)


def _spent(row: Any) -> Spent:
    return Spent(float(row.epsilon), float(row.squared_ratio), bool(row.unbounded), int(row.rounds))
