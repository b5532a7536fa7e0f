"""A round of both streams that is about to be aggregated, copies of it, and the end of its server at any boundary."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import event, select

from server.aggregation.tree_reduction import LocalWorkers
from server.plans.round import RoundState
from server.registry.models import blob_name, find_model
from server.rounds.advance import advance
from server.rounds.store import find_round, transition
from server.service import Service
from server.storage.schema import ledger, marginals, models, publications, release_keys, releases, reports, rounds
from tests.server.parties import Operator, Party, serving, settings

EPSILON = 0.5


class Killed(BaseException):
    """The end of the process: nothing of the project catches it."""


@dataclass
class Steps:
    """Every boundary that a service passes: before and after each statement, each commit, each write and each deletion
    of a blob. limit: the one at which the process ends; None counts them only."""

    service: Service
    limit: int | None = None
    passed: int = 0

    def __post_init__(self) -> None:
        engine, blobs = self.service.database.engine, self.service.blobs
        for name in ("before_cursor_execute", "after_cursor_execute"):
            event.listen(engine, name, lambda _connection, cursor, *_: self.step(cursor))
        event.listen(engine, "commit", lambda _connection: self.step())
        for name in ("put", "delete"):
            setattr(blobs, name, self._around(getattr(blobs, name)))

    def step(self, cursor: Any = None) -> None:
        self.passed += 1
        if self.passed - 1 == self.limit:
            if cursor is not None:
                cursor.close()  # else the exception would keep it, and its locks, alive
            raise Killed

    def _around(self, whole: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*arguments: Any) -> Any:
            self.step()
            found = whole(*arguments)
            self.step()
            return found

        return stepping


class Published(NamedTuple):
    """What a round left behind, to the last bit; times and random ids of rounds that follow are not in it."""

    state: str
    releases: list[Any]
    marginals: list[Any]
    models: list[Any]
    publications: list[Any]
    charges: list[Any]


def closing(folder: Path, devices: int = 3, **plan: Any) -> str:
    """A folder with a round that has all its reports and is closing. Returns the round's id."""
    with serving(folder, tick_seconds=1e9) as http:
        operator = Operator(http)
        streams = {"marginals": {"epsilon": EPSILON}, "deltas": {}, "teacher": {"interval": 1}, "rounds": 2} | plan
        round_id = operator.open(**streams)
        for number in range(devices):
            device = Party(http).enrol()
            assert device.send_counts(round_id, {7 + number: 256}, report_id=f"m{number}").status_code == 200
            assert device.send_delta(round_id, value=0.01 * (number + 1), report_id=f"d{number}").status_code == 200
        with http.app.state.service.database.write() as connection:
            transition(connection, find_round(connection, round_id), RoundState.CLOSING, time.time())
    return round_id


def open_copy(folder: Path, place: Path) -> Service:
    """A service over a copy of a folder."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    return Service(settings(place, tick_seconds=1e9))


def go_on(service: Service, round_id: str) -> None:
    workers, caps = LocalWorkers(service.blobs), service.caps
    advance(service.database, service.blobs, round_id, lambda: 5000.0, None, None, workers, caps, None)


def killed(service: Service, round_id: str, limit: int) -> int:
    """Take a round on until the process ends at a boundary, and close what it held. Returns the boundaries passed."""
    connections: set[Any] = set()
    event.listen(service.database.engine, "checkout", lambda connection, *_: connections.add(connection))
    steps = Steps(service, limit)
    with suppress(Killed):
        go_on(service, round_id)
    service.close()
    for connection in connections:
        connection.close()
    return steps.passed


def published(service: Service, round_id: str) -> Published:
    with service.database.read() as connection:
        row = find_round(connection, round_id)
        found = list(connection.execute(select(releases).order_by(releases.c.stream)))
        weights = []
        for version in connection.execute(select(models.c.version).order_by(models.c.version)).scalars():
            model = find_model(connection, version)
            weights.append((version, model.parent, model.teacher, service.blobs.get(blob_name(model.sha256))))
        table = select(marginals.c.version, marginals.c.sha256, marginals.c.counts).order_by(marginals.c.version)
        charges = select(ledger.c.report_id, ledger.c.draw).order_by(ledger.c.report_id, ledger.c.draw)
        order = select(publications.c.kind, publications.c.version).order_by(publications.c.id)
        left = select(reports.c.id).where(reports.c.counts.is_not(None) | reports.c.blob.is_not(None))
        assert connection.execute(left).first() is None, "raw contributions are deleted with the release"
        assert set(connection.execute(select(release_keys.c.key)).scalars()) <= {None}, "and so are keys"
        following = select(rounds.c.state).where(rounds.c.id != round_id)
        assert connection.execute(following).scalars().all() == ["open"], "one round follows"
        drawn = [(each.stream, each.inputs_sha256, each.reports, each.counts, each.model_version) for each in found]
        tables = [connection.execute(each).all() for each in (table, order, charges)]
        return Published(row.state, drawn, tables[0], weights, *tables[1:])


def noise_of(found: Published) -> np.ndarray:
    """The noised counts of the marginals' release, int64 [words]."""
    return np.frombuffer(next(each[3] for each in found.releases if each[0] == "marginals"), "<i8")
