"""Long series of rounds: over HTTP, and through the service layer; what a round leaves in the database."""

import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import combinations

import numpy as np
from sqlalchemy import event, func, select

from device_sdk.benchmarks import Figure
from device_sdk.errors import StateError
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from rescoring.words import WordList
from server.devices.authentication import Sender
from server.lab.load import traffic
from server.lab.load.devices import device_of
from server.lab.load.ground import Ground
from server.lab.load.rates import NAMES, serving
from server.lab.load.traffic import SENDERS, Crowd
from server.lab.simulation.progress import Tell
from server.plans.round import RoundSettings, RoundState
from server.registry.initial import InitialModel, initial_from_bundle
from server.rounds.reports import Contribution, accept
from server.rounds.retention import forgettable
from server.rounds.store import rounds_in
from server.service import Service
from server.settings import ServerSettings
from server.storage.database import Database
from server.storage.schema import reports

BYTES = 8_192
"""That a round may leave for good, at most."""
WORDS = 1_000
"""On the list of the series through the service layer: what a round leaves does not depend on them."""
PAUSE = 3_600.0
"""Seconds between two of its rounds, by the clock that its server is given."""
PATIENCE = 120.0


def served(ground: Ground, tell: Tell) -> list[Figure]:
    """Rounds over HTTP, one after another, each device's report after a check-in of its process. Raises StateError
    where a report is refused or a round lacks one."""
    sizes, what = ground.sizes, f"rounds over HTTP, {ground.kind}"
    each = sizes.goal // SENDERS
    plan = RoundSettings(marginals=MarginalPlan(), goal=SENDERS * each, rounds=sizes.served + 1, no_privacy=True)
    journals = [ground.folder / f"acknowledged.{number}" for number in range(SENDERS)]
    begun = time.monotonic()
    with serving(ground) as (server, target), Crowd(sizes.signing) as crowd:
        server.operator.create_round(plan)
        running = [
            crowd.begin_one(
                number, traffic.series, target, sizes.served, each, journals[number], ground.folder / "stop"
            )
            for number in range(SENDERS)
        ]
        while not all(one.done() for one in running):
            tell(what, sum(row.state == "published" for row in server.operator.rounds(1_000)), sizes.served)
            time.sleep(2.0)
        tally = traffic.total(running)
        seconds = time.monotonic() - begun
        last = server.operator.rounds(1)[0]
        if last.state == "open":
            server.operator.abandon_round(last.id)
    if tally.problems:
        raise StateError(f"{what}: found {tally.problems.most_common(2)}, expected receipts for all reports")
    lost = sizes.served * SENDERS * each - _stored(ground)
    return [
        Figure(f"{sizes.served} rounds over HTTP; {NAMES[ground.kind]}", "reports a second", tally.answered / seconds),
        Figure(f"{sizes.served} rounds over HTTP; {NAMES[ground.kind]}", "seconds a round", seconds / sizes.served),
        Figure("reports of these that are missing", "of all", lost, target=0, lower_is_better=True),
    ]


def _stored(ground: Ground) -> int:
    with closing(Database(ground.database, existing=True)) as database, database.read() as connection:
        return int(connection.execute(select(func.count()).select_from(reports)).scalar_one())


def direct(ground: Ground, tell: Tell) -> list[Figure]:
    """Rounds through the service layer, an hour apart by the server's clock, of all enrolled devices in turn."""
    sizes, what = ground.sizes, f"rounds through the service, {ground.kind}"
    initial, hours = narrow(initial_from_bundle(None), WORDS), [0]
    start, keep = time.time(), max(2, sizes.direct // 3)
    settings = ServerSettings(
        database=ground.database,
        blobs=ground.folder / "server.blobs",
        enrolment_token=secrets.token_urlsafe(16),
        operator_token=secrets.token_urlsafe(16),
        keep_rounds=keep,
        marginals_cap=np.inf,
        clock=lambda: start + PAUSE * hours[0],
    )
    ids = [device_of(ground.secret, number).id for number in range(sizes.enrolled)]
    plan = RoundSettings(
        marginals=MarginalPlan(), goal=sizes.goal, rounds=sizes.direct + 1, seconds=1e7, no_privacy=True
    )
    pages: list[tuple[int, int]] = []
    begun, accepting = time.monotonic(), 0.0
    with Service(settings, initial) as service:
        _without_syncing(service.database)
        service.create_round(plan, opened=True)
        last = ""
        for number in range(sizes.direct):
            last = _opened(service, last)
            if number % max(1, sizes.direct // 100) == 0:
                pages.append((number, _settled_bytes(service, keep)))
                tell(what, number, sizes.direct)
            entered = time.monotonic()
            for place in range(sizes.goal):
                _report(service, ids[(number * sizes.goal + place) % len(ids)], last, initial)
            accepting += time.monotonic() - entered
            hours[0] += 1
            service.wake()
        _opened(service, last)
    taken, named = sizes.direct * sizes.goal, NAMES[ground.kind]
    slope = _growth(pages[len(pages) // 2 :])
    metric = f"{sizes.direct} rounds through the service layer; {named}"
    return [
        Figure(metric, "reports a second of taking them", taken / accepting),
        Figure(metric, "reports a second of all of it", taken / (time.monotonic() - begun)),
        Figure(metric, "bytes a round, in the second half", slope, target=BYTES, lower_is_better=True),
        Figure(metric, "MB in use at the end", pages[-1][1] / 1e6),
    ]


def _growth(used: Sequence[tuple[int, int]]) -> float:
    """Bytes a round: the median over pairs of rounds (Theil-Sen), since a table takes a page at a time."""
    return float(
        np.median([(after - before) / (late - early) for (early, before), (late, after) in combinations(used, 2)])
    )


def narrow(initial: InitialModel, words: int) -> InitialModel:
    """The same with the first words of its list only."""
    kept = initial.words[:words]
    background = initial.background[:words] / initial.background[:words].sum()
    return replace(initial, words=kept, background=background, words_digest=WordList(kept).digest)


def used_bytes(database: Database) -> int:
    """Of an SQLite database's pages in use."""
    with database.read() as connection:
        size, pages, free = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_size", "page_count", "freelist_count")
        )
    return size * (pages - free)


def _settled_bytes(service: Service, keep: int) -> int:
    """In use once all is forgotten that is older than the ``keep`` newest rounds. Raises StateError where that never
    ends."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with service.database.read() as connection:
            left = forgettable(connection, keep)
        if not left:
            return used_bytes(service.database)
        time.sleep(0.005)
    raise StateError(f"round {left[0].id}: found it not forgotten within {PATIENCE:.0f} s")


def _without_syncing(database: Database) -> None:
    """Commits that wait for no disk: what rounds leave does not depend on it, and a million reports take a third of the
    time."""
    event.listen(database.engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF"))
    database.engine.dispose()


def _opened(service: Service, last: str) -> str:
    """The id of the open round after ``last``. Raises StateError where none opens."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with service.database.read() as connection:
            found = [row.id for row in rounds_in(connection, RoundState.OPEN)]
        if found and found[0] != last:
            return str(found[0])
        time.sleep(0.005)
    raise StateError(f"round after {last}: found none open within {PATIENCE:.0f} s")


def _report(service: Service, device: str, round_id: str, initial: InitialModel) -> None:
    """What the route of reports does once it has verified and parsed one."""
    now = service.settings.clock()
    sender = Sender(device, "", secrets.token_hex(12), now + service.settings.window_seconds)
    word = 1 + secrets.randbelow(len(initial.words) - 1)
    name = secrets.token_hex(8)
    body = f"{device} {name} {word}".encode()
    own = Contribution(name, round_id, "marginals", body, 1, counts={word: FIXED_POINT})
    accept(service.database, sender, own, caps=service.caps, clock=service.settings.clock)
