"""Who is left out of later groups for what it did in one, on what evidence, and for how long.

A share that is not on its dealer's polynomials was falsified by its holder, or dealt so: the two are in dispute, and
which of them is to blame nobody can see. A share of its own secret is a device's own. So there are three grounds:

- **false about itself**: 30 days.
- **in dispute with many**: with more of a group's devices than it can lose (n - t of n, for threshold t), as holder or
  as dealer. Each of an honest device's disputes is with a hostile one, so that many would have to conspire. 30 days.
- **a secret that is not there**: its shares do not give what the device announced, which ended the group. Of all who
  took part it alone can do this by itself; together, holders can whose shares are more than half of those beyond the
  threshold. It is held against a device only where at least half of the shares that a group can lose had come in beyond
  the threshold, and for one day: long enough that nobody stops group after group.

Fewer disputes are held against nobody. They did not keep the group from its sum, and an honest device may be one end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from device_sdk.wire.secure_aggregation import Roster
from server.rounds.secure_aggregation.unmasking import Recovered
from server.storage.schema import exclusions

DISPUTED_SECONDS = 30 * 86_400.0
LOST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """seconds: how long a device is left out. reason: why, for operators."""

    seconds: float
    reason: str


def excluded_by(roster: Roster, recovered: Recovered) -> Mapping[str, Exclusion]:
    """Whom the evidence of one group's shares leaves out, by device."""
    spare = len(roster.members) - roster.threshold
    others: defaultdict[str, set[str]] = defaultdict(set)
    found: dict[str, Exclusion] = {}
    for name in recovered.lost:
        if 2 * (recovered.revealing - roster.threshold) >= spare > 0:
            found[name] = Exclusion(LOST_SECONDS, "its shares do not give what it announced")
    for dealer, holder in recovered.disputes:
        others[dealer].add(holder)
        others[holder].add(dealer)
    for name, disputed in others.items():
        if name in disputed:
            found[name] = Exclusion(DISPUTED_SECONDS, "it sent a false share of its own secret")
        elif len(disputed) > spare:
            found[name] = Exclusion(DISPUTED_SECONDS, f"in dispute with {len(disputed)} devices over shares")
    return dict(sorted(found.items()))


def exclude(connection: Connection, round_id: str, found: Mapping[str, Exclusion], now: float) -> None:
    """Leave devices out from now on."""
    for name, each in found.items():
        row = {"device_id": name, "round_id": round_id, "reason": each.reason, "ends_at": now + each.seconds}
        connection.execute(insert(exclusions).values(**row, excluded_at=now))


def excluded_until(connection: Connection, device_id: str, now: float) -> float | None:
    """When a device may join groups again, None where it may now."""
    query = select(func.max(exclusions.c.ends_at)).where(exclusions.c.device_id == device_id)
    ends = connection.execute(query).scalar()
    return None if ends is None or ends <= now else float(ends)
