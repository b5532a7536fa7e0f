"""When the loop that moves rounds on, and each unfinished round, last had a good tick; so that standing still shows.

A round's tick is good when its deadline, its groups and its next step were looked at and none of it failed, even where
there was nothing to do. Of several processes one leads; it writes down every few seconds what it knows, and the others
read that."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select

from server.storage.schema import ticks

LOOP = "loop"
"""The name of the whole beside those of rounds."""
TOLD_SECONDS = 5.0
"""How often the process that leads tells the others."""


@dataclass(frozen=True, slots=True)
class Seen:
    """ages: seconds since the last good tick, of the loop and of every unfinished round. busy: for how long the loop
    has been at one step of a round, such as adding up its reports, None where it is at none."""

    ages: Mapping[str, float]
    busy: float | None = None

    def stands_still(self, most: float, longest_step: float) -> bool:
        """Whether anything has waited longer than ``most`` seconds. What waits for one long step does not stand still
        for that, up to ``longest_step`` seconds."""
        working = self.busy if self.busy is not None and self.busy <= longest_step else 0.0
        return max(self.ages.values(), default=0.0) - working > most


class Ticks:
    """Owns the times of one process, any of whose threads may ask. clock: seconds, never set back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turn = threading.Lock()
        self._good = {LOOP: clock()}
        self._busy: float | None = None

    def watch(self, rounds: Iterable[str]) -> None:
        """These are unfinished, and no others. One that is new begins now."""
        with self._turn:
            now = self._clock()
            self._good = {LOOP: self._good[LOOP]} | {name: self._good.get(name, now) for name in rounds}

    def begin(self) -> None:
        """This process leads from now on."""
        with self._turn:
            self._good = {LOOP: self._clock()}

    def good(self, *names: str) -> None:
        with self._turn:
            now = self._clock()
            self._good.update((name, now) for name in names if name in self._good)

    @contextmanager
    def working(self) -> Iterator[None]:
        """A step that may take long."""
        with self._turn:
            self._busy = self._clock()
        try:
            yield
        finally:
            with self._turn:
                self._busy = None

    @property
    def seen(self) -> Seen:
        with self._turn:
            now = self._clock()
            busy = None if self._busy is None else now - self._busy
            return Seen({name: now - at for name, at in self._good.items()}, busy)


def tell(connection: Connection, seen: Seen, now: float) -> None:
    """Write down what the leading process knows, in place of what it knew before."""
    connection.execute(delete(ticks))
    rows = [{"name": name, "good_at": now - age, "told_at": now, "busy": seen.busy} for name, age in seen.ages.items()]
    connection.execute(insert(ticks), rows)


def seen_of(connection: Connection, now: float, since: float) -> Seen:
    """What the leading process wrote down, as it is ``now``. since: when this process began, before which it blames
    nobody."""
    rows = list(connection.execute(select(ticks)))
    ages = {row.name: now - max(row.good_at, since) for row in rows} or {LOOP: now - since}
    fresh = [row for row in rows if row.busy is not None and now - row.told_at <= 3 * TOLD_SECONDS]
    return Seen(ages, max((row.busy + now - row.told_at for row in fresh), default=None))
