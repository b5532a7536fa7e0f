"""When a device should come back, so that a fleet of any size arrives at the rate that is wanted and stood.

N: devices seen lately; c: check-ins a second that the server stands; u: the usual interval, seconds. A device is sent
away for an interval I on the average, u or longer, to a moment drawn from a window of width w >= N / c (pace steering:
Bonawitz et al., Towards Federated Learning at Scale, 2019). A fleet that asked all at once then comes back at c a
second or less. I is at least 3 N / 2 c, so the window begins no sooner than it is wide, and who comes back first is not
there again before the last has come: arrivals never add up to more than c. In the long run there are N / I, at most
2 c / 3. Only of devices that it has not seen yet does the server know nothing: a fleet that enrols faster than it
stands is told apart once it is counted."""

import random
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, func, or_, select, update

from server.plans.round import RoundSettings
from server.storage.schema import devices

JITTER = 0.2
"""Least width of the window, in intervals."""
SHORTEST = 10.0
"""No demand calls a device back sooner, seconds."""
MARGIN = 2.0
"""Check-ins for every report that is wanted: not every device that comes has something to send."""
SEEN_SECONDS = 2 * 86400.0
"""A device that was not seen for so long does not count: it may never come back."""
SEEN_RESOLUTION = 3600.0
"""When a device was seen is written down so often at most, to spare the disk."""
COUNTED_SECONDS = 30.0
"""How long a count of the fleet is believed."""


@dataclass(frozen=True, slots=True)
class Window:
    """Seconds from now between which a device should come back."""

    earliest: float
    latest: float

    @property
    def mean(self) -> float:
        return (self.earliest + self.latest) / 2

    def draw(self) -> float:
        """A moment of it."""
        return random.uniform(self.earliest, self.latest)


@dataclass(frozen=True, slots=True)
class Demand:
    """What an open round still wants of the devices that it asks. reports: of the stream that lacks most; seconds:
    until the deadline; share: of the fleet that is asked."""

    reports: int
    seconds: float
    share: float = 1.0

    @property
    def rate(self) -> float:
        """Check-ins a second that bring the reports in time."""
        return MARGIN * self.reports / (max(self.seconds, 1.0) * self.share)


def window(fleet: int, capacity: float, usual: float, demand: Demand | None = None) -> Window:
    """When to come back, of a fleet of so many devices. capacity: c, check-ins a second; usual: u, seconds; demand: of
    the round that asks this device, which may have something to send the next time, and is called sooner then."""
    interval = usual
    if demand is not None and demand.rate > 0:
        interval = min(usual, max(fleet / demand.rate, SHORTEST))
    interval = max(interval, 1.5 * fleet / capacity)
    width = max(JITTER * interval, fleet / capacity)
    return Window(interval - width / 2, interval + width / 2)


def demand_of(row: Row[Any], settings: RoundSettings, now: float) -> Demand | None:
    """What an open round still wants; None where it has no goal to reach."""
    if settings.goal is None:
        return None
    missing = max(settings.goal - getattr(row, f"{stream}_reports") for stream in settings.streams)
    if missing <= 0 or row.deadline <= now:
        return None
    asked = 1.0
    if settings.sampling is not None and row.eligible:
        expected = settings.sampling.rate or settings.goal * settings.sampling.over_selection / row.eligible
        asked = min(1.0, max(expected, 1.0 / row.eligible))
    return Demand(missing, row.deadline - now, asked)


class Fleet:
    """Owns one process' count of the devices that were seen lately. Counting again takes a pass over an index, so it is
    done every few seconds, not at every check-in."""

    def __init__(self) -> None:
        self._devices = 0
        self._counted_at = -COUNTED_SECONDS

    def size(self, connection: Connection, now: float) -> int:
        """Devices that checked in, or enrolled, within ``SEEN_SECONDS``."""
        if not 0 <= now - self._counted_at < COUNTED_SECONDS:
            since, counted = now - SEEN_SECONDS, select(func.count()).select_from(devices)
            # Each by the index alone. Those that were revoked come no more, and are forgotten as all others are.
            seen = counted.where(devices.c.seen_at >= since)
            new = counted.where(devices.c.seen_at.is_(None), devices.c.enrolled_at >= since)
            self._devices = sum(int(connection.execute(query).scalar_one()) for query in (seen, new))
            self._counted_at = now
        return self._devices


def note_seen(connection: Connection, device_id: str, now: float) -> None:
    """Write down that a device is there, unless that was done within the hour."""
    stale = or_(devices.c.seen_at.is_(None), devices.c.seen_at < now - SEEN_RESOLUTION, devices.c.seen_at > now)
    connection.execute(update(devices).where(devices.c.id == device_id, stale).values(seen_at=now))
