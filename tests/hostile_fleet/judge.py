"""What the lines of a run say, from what was sampled while it went on and from the databases that it left."""

import sqlite3
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import select

from device_sdk.wire.messages import FIXED_POINT
from server.plans.round import UNDERWAY
from server.privacy import ledger
from server.settings import database_url
from server.storage.database import Database
from server.storage.schema import devices
from tests.hostile_fleet.honest import WEIGHT, Honest
from tests.hostile_fleet.process import OperatedServer

WINDOW = 10.0
"""Seconds around a moment in which a check-in that went through shows that the server works."""


@dataclass(frozen=True)
class Books:
    """What a database says of its rounds. states: by round; released: the noised counts [words] of a round's release,
    in fixed-point units, where it has one and is published; drawn: of every release, published or not. spoiled: (round
    that is over, device whose group ended without a sum when its shares may have been known): it was charged, and told
    like all that are in a sum that its counts are not due again, with a release of other groups or without any."""

    states: dict[str, str]
    released: dict[str, NDArray[np.int64]]
    drawn: dict[str, NDArray[np.int64]]
    spoiled: frozenset[tuple[str, str]] = frozenset()


def read_books(database: Path) -> Books:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        states = dict(connection.execute("SELECT id, state FROM rounds").fetchall())
        query = "SELECT round_id, counts FROM releases WHERE stream = 'marginals' AND counts IS NOT NULL"
        drawn = {name: np.frombuffer(counts, "<i8") for name, counts in connection.execute(query)}
        query = "SELECT round_id, device_id FROM reports WHERE stream = 'marginals' AND NOT counted"
        spoiled = frozenset(pair for pair in connection.execute(query) if states[pair[0]] not in UNDERWAY)
    return Books(states, {name: drawn[name] for name in drawn if states[name] == "published"}, drawn, spoiled)


def counted_once(
    members: Sequence[Honest], names: Mapping[str, str], words: Sequence[str], books: Sequence[Books]
) -> dict[str, int]:
    """How many of the reports that honest devices were told count are in the published releases ``once``, ``twice`` or
    more often, or ``lost`` although their round was published; ``unpublished``: in rounds that ended without;
    ``spoiled``: in groups that did; ``unsaid``: counts of an honest device's word in a release that it was never told
    of, where it has its counts back or had none to give. names: of the devices at the server, by word."""
    released = {name: counts for each in books for name, counts in each.released.items()}
    # A restored server has given up rounds that the lost one may have published, with the same groups' sums.
    spoiled = {pair for each in books for pair in each.spoiled if each.states[pair[0]] == "published"}
    found: Counter[str] = Counter(once=0, twice=0, lost=0, unpublished=0, spoiled=0, unsaid=0)
    for member in members:
        place, unsure = words.index(member.word), Counter(member.unsure)
        told = Counter(name for name in member.counted if (name, names[member.word]) not in spoiled)
        found["spoiled"] += len(member.counted) - told.total()
        found["unpublished"] += sum(times for name, times in told.items() if name not in released)
        for name, counts in released.items():
            seen = round(int(counts[place]) / (WEIGHT * FIXED_POINT))
            found["once"] += min(seen, told[name], 1)
            found["lost"] += max(told[name] - seen, 0)
            found["twice" if told[name] or unsure[name] else "unsaid"] += max(seen - told[name] - unsure[name], 0)
    return dict(found)


def unreleased(members: Sequence[Honest], names: Mapping[str, str], books: Books, lost: Books) -> int:
    """How many of the reports that honest devices were told count are in no release, although neither the loss of a
    server is why, which had not published their round, nor a group that ended without its sum."""
    unpublished = {name for name, state in lost.states.items() if state != "published"}
    excused = unpublished | lost.released.keys() | books.released.keys()
    spoiled = lost.spoiled | books.spoiled
    told = ((name, names[each.word]) for each in members for name in each.counted if name not in excused)
    return sum(pair not in spoiled for pair in told)


def spent_reports(database: Path, names: Iterable[str]) -> dict[str, int]:
    """How many reports of marginals the ledger has charged each of these devices for; 0 where it does not know one."""
    with closing(Database(database_url(str(database)))) as own, own.read() as connection:
        known = set(connection.execute(select(devices.c.id)).scalars())
        return {name: ledger.spent(connection, name, "marginals").rounds if name in known else 0 for name in names}


@dataclass
class Readiness:
    """Owns the thread that asks ``/readyz`` once a second. samples: (time.monotonic(), what was answered, or None where
    nothing was, whether a process ran, whether a round stands still)."""

    server: OperatedServer
    patience: float
    samples: list[tuple[float, str | None, bool, bool]] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    _since: dict[str, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="readiness")
        self._thread.start()

    def close(self) -> None:
        self.stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=5) as http:
            while not self.stopping.wait(1.0):
                told: str | None = None
                with suppress(httpx.HTTPError, ValueError, KeyError):
                    told = str(http.get(f"{self.server.url}/readyz").json()["status"])
                self.server.look()
                self.samples.append((time.monotonic(), told, self.server.process is not None, self._stands_still()))

    def _stands_still(self) -> bool:
        """Whether a round has been closing, or on its way from there, for longer than any group of it could take."""
        try:
            states = read_books(self.server.database).states
        except sqlite3.Error:
            return False
        now = time.monotonic()
        moving = {name: state for name, state in states.items() if state in ("closing", "aggregated", "evaluated")}
        self._since = {
            name: kept if (kept := self._since.get(name)) and kept[0] == state else (state, now)
            for name, state in moving.items()
        }
        return any(now - since > self.patience for _, since in self._since.values())


def wrong_seconds(samples: Sequence[tuple], successes: Sequence[float]) -> tuple[float, float]:
    """(the longest time for which it said ready while no check-in went through or a round stood still, the longest for
    which it did not say ready while all went well). successes: of all honest devices, sorted."""

    def works(at: float) -> bool:
        place = bisect_left(successes, at - WINDOW)
        return place < len(successes) and successes[place] <= at + WINDOW

    longest, since = [0.0, 0.0], [None, None]  # type: tuple[list[float], list[float | None]]
    for at, told, running, still in samples:
        fine = works(at) and not still
        for place, wrong in enumerate((told == "ready" and not fine, told != "ready" and running and fine)):
            begun = since[place]
            if not wrong:
                since[place] = None
            elif begun is None:
                since[place] = at
            else:
                longest[place] = max(longest[place], at - begun)
    return longest[0], longest[1]
