"""Processes of a server are killed while reports flow: what was acknowledged is counted once, whatever happened."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from math import ceil

import numpy as np
from sqlalchemy import select

from device_sdk.benchmarks import Figure
from device_sdk.errors import CheckInError, StateError
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from server.lab.load import traffic
from server.lab.load.ground import PROCESSES, Ground
from server.lab.load.rates import NAMES, serving
from server.lab.load.traffic import SENDERS, Crowd, acknowledged
from server.lab.simulation.process import ServerProcess
from server.lab.simulation.progress import Tell
from server.plans.round import RoundSettings
from server.storage.database import Database
from server.storage.schema import releases

NO_NOISE = 1e8
"""An epsilon at which every draw of noise is zero but for one chance in e^(10^4): what is released tells who is in
it."""
WHOLE = 5
"""Of a server of several processes, every fifth kill is of the process that starts the others again."""
PATIENCE = 120.0
SMALLER = 10
"""So many times fewer reports has a round here: kills fall on what closes rounds, too."""


def kills(ground: Ground, tell: Tell) -> list[Figure]:
    """A report owns one word of its round's release: none is one that was lost, two one that was counted twice. Raises
    StateError where a report is refused."""
    sizes, dice, what = ground.sizes, random.Random(0), f"kills, {ground.kind}"
    each, stop = max(1, sizes.goal // SMALLER // SENDERS), ground.folder / "stop"
    journals = [ground.folder / f"acknowledged.{number}" for number in range(SENDERS)]
    for journal in journals:
        journal.touch()
    plan = RoundSettings(marginals=MarginalPlan(epsilon=NO_NOISE), goal=SENDERS * each, rounds=100_000, no_privacy=True)
    with serving(ground) as (server, target), Crowd(sizes.signing) as crowd:
        server.operator.create_round(plan)
        running = [
            crowd.begin_one(number, traffic.series, target, plan.rounds, each, journals[number], stop)
            for number in range(SENDERS)
        ]
        try:
            for number in range(sizes.kills):
                tell(what, number, sizes.kills)
                received = sum(journal.stat().st_size for journal in journals)
                deadline = time.monotonic() + PATIENCE
                while sum(journal.stat().st_size for journal in journals) == received:
                    if time.monotonic() > deadline or any(one.done() for one in running):
                        traffic.total([one for one in running if one.done()])  # raises what ended it
                        raise StateError(f"{what}: found no receipt after kill {number}, expected reports to go on")
                    time.sleep(0.01)
                time.sleep(dice.uniform(0.0, 2.0))
                _kill_one(server, ground, number, dice)
        finally:
            stop.touch()  # devices would go on for ever
        tally = traffic.total(running)
        _finish(server)
    if tally.problems:
        raise StateError(f"{what}: found {tally.problems.most_common(2)}, expected receipts for all reports")
    receipts = [(round_id, target.word_of(number)) for round_id, number in acknowledged(journals)]
    lost, doubled = judge(receipts, dict(_released(ground)))
    metric = f"{len(receipts)} reports through {sizes.kills} kills; {NAMES[ground.kind]}"
    return [
        Figure(metric, "lost", lost, target=0, lower_is_better=True),
        Figure(metric, "counted twice, or unasked", doubled, target=0, lower_is_better=True),
    ]


def judge(receipts: Iterable[tuple[str, int]], counted: Mapping[str, Mapping[int, int]]) -> tuple[int, int]:
    """(reports that are in no release, reports that are in one twice or that nobody sent). receipts: round and word of
    each that was acknowledged. counted: round -> word -> units in its release."""
    expected: dict[str, Counter[int]] = {}
    for round_id, word in receipts:
        expected.setdefault(round_id, Counter())[word] += 1
    lost = doubled = 0
    for round_id in expected.keys() | counted.keys():
        said, found = expected.get(round_id, Counter[int]()), counted.get(round_id, {})
        for word in said.keys() | found.keys():
            more = found.get(word, 0) / FIXED_POINT - said[word]
            lost += ceil(max(0.0, -more))
            doubled += ceil(max(0.0, more))
    return lost, doubled


def _released(ground: Ground) -> Iterator[tuple[str, Mapping[int, int]]]:
    with closing(Database(ground.database, existing=True)) as database, database.read() as connection:
        for row in connection.execute(select(releases.c.round_id, releases.c.counts)):
            counts = np.frombuffer(row.counts, "<i8")
            yield row.round_id, {int(word): int(counts[word]) for word in np.flatnonzero(counts)}


def _kill_one(server: ServerProcess, ground: Ground, number: int, dice: random.Random) -> None:
    """SIGKILL to one process; the server is then started again, unless it does that itself."""
    if PROCESSES[ground.kind] > 1 and number % WHOLE != WHOLE - 1:
        with suppress(OSError, ValueError, KeyError):
            members = json.loads((ground.folder / "ready.json").read_text())["processes"]
            os.kill(dice.choice(members), signal.SIGKILL)
            return
    server.stop(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            server.start()
            return
        except StateError:  # a database may take a moment to see that the one before is gone
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _finish(server: ServerProcess) -> None:
    """The round that is half full is closed and published, and the series ends."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(CheckInError):
            rows = server.operator.rounds(2)
            if rows[0].state == "open" and not rows[0].reports["marginals"] and rows[1].state == "published":
                server.operator.abandon_round(rows[0].id)
                return
            if rows[0].state == "open" and rows[0].reports["marginals"]:
                server.operator.close_round(rows[0].id)
        time.sleep(0.2)
    raise StateError("rounds: found them unfinished, expected the last to be published")
