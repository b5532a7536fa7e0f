"""One running server: its database, its blobs, and the thread that moves rounds on."""

from __future__ import annotations

import logging
import math
import threading
import time
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, select

from server.aggregation.folding import Here, Workers
from server.aggregation.processes import Processes
from server.buckets import Buckets
from server.canaries import conduct
from server.devices.enrolment import count_devices
from server.metrics import Metrics
from server.operators.actions import record
from server.operators.roles import BOOTSTRAP
from server.privacy import ledger
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose
from server.problems import Refusal
from server.readiness import Readiness, Ready
from server.registry.differences import Differences
from server.registry.initial import InitialModel, register_initial
from server.registry.models import find_model, load, trainable
from server.registry.publications import current_version
from server.registry.retention import remove_old
from server.rounds.advance import Evaluate, abandon, advance, close_overdue, remove_orphans
from server.rounds.pacing import Fleet
from server.rounds.release_keys import Caps
from server.rounds.releases import Rehearse
from server.rounds.settings import STREAMS, RoundSettings
from server.rounds.states import RoundState, check
from server.rounds.store import create_round, find_round, open_round, rounds_in, transition, view
from server.secure_aggregation.progress import advance_groups
from server.settings import ServerSettings
from server.storage.blobs import BlobStore, FolderLock, open_blobs
from server.storage.database import Database
from server.storage.schema import publications
from server.storage.turns import Lead, Turn
from server.updates.repository import Repository

__all__ = ["Service"]

log = logging.getLogger("idiolect.server")

PAUSE_AFTER_FAILURE = 10.0


class Service:
    """Owns what a server process owns. Open it once per process; ``close`` waits for the step in progress."""

    def __init__(
        self,
        settings: ServerSettings,
        initial: InitialModel | None = None,
        evaluate: Evaluate | None = None,
        rehearse: Rehearse | None = None,
    ) -> None:
        self.settings = settings
        # Two servers would each take the other's uploads in progress for leftovers of a crash.
        self._lock = None if settings.member else FolderLock(settings.lock_folder)
        try:
            self.database = Database(settings.database_url, settings.connections)
            self.database.claim(processes=settings.processes, member=settings.member)
        except BaseException:
            self._unlock()
            raise
        self.blobs = open_blobs(settings.blobs, tidy=not settings.member)
        self.metrics = Metrics()
        rates = settings.rates
        self.address_rates = Buckets(rates.address, rates.remembered, time.monotonic)
        self.device_rates = Buckets(rates.device, rates.remembered, time.monotonic)
        self.readiness = Readiness()
        self.fleet = Fleet()
        self.words: tuple[str, ...] = initial.words if initial is not None else ()
        self.listed = frozenset(self.words)
        self._evaluate = evaluate
        self._rehearse = rehearse
        self._workers = _workers(settings, self.blobs)
        self.differences = Differences(self.blobs)
        self._shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        self._advancing = Turn(self.database)
        self._lead = Lead(self.database)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ticker: threading.Thread | None = None
        try:
            if initial is not None:
                register_initial(self.database, self.blobs, initial, settings.clock())
            with self.database.read() as connection:
                model = find_model(connection, current_version(connection, "model"))
            # A delta holds no constants, so the model's own size bounds it.
            self.delta_bytes = model.size + settings.limits.delta_overhead
            self.updates: Repository | None = None
            if settings.updates is not None:
                self.updates = Repository(settings.updates, self.database, settings.clock)
            if not settings.member:
                remove_orphans(self.database, self.blobs)
        except BaseException:
            self.database.close()
            self._unlock()
            raise

    def start(self) -> None:
        """Start moving rounds on: first those that a stopped or killed server left half-way."""
        self._ticker = threading.Thread(target=self._run, name="idiolect-rounds", daemon=True)
        self._ticker.start()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._ticker is not None:
            self._ticker.join()
        self._workers.close()
        self._lead.close()
        self.database.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def shapes(self, digest: str) -> dict[str, tuple[int, ...]]:
        """Names and shapes that a delta of a stored model must have."""
        found = self._shapes.get(digest)
        if found is None:
            found = trainable(load(self.blobs, digest))
            self._shapes = {digest: found}  # rounds follow each other: only the newest base is asked for
        return found

    @property
    def _caps(self) -> Caps:
        return Caps(self.settings.delta_probability, {stream: self.settings.cap(stream) for stream in STREAMS})

    @property
    def ready(self) -> Ready:
        """Whether this process can serve, as it was found some seconds ago at most."""
        rounds = self._ticker is not None and self._ticker.is_alive()
        return self.readiness.look(self.database, self.blobs, self.settings, rounds)

    def wake(self) -> None:
        """Have rounds looked at now: one has just reached its goal."""
        self._wake.set()

    def tick(self) -> None:
        """Close what is overdue, move every round that can move, and sign what was published."""
        close_overdue(self.database, self.settings.clock())
        advance_groups(self.database, self.settings.clock())
        with self.database.read() as connection:
            ready = rounds_in(connection, RoundState.CLOSING, RoundState.AGGREGATED, RoundState.EVALUATED)
        failures: list[Exception] = []
        for row in ready:
            try:
                self.advance(row.id)
            except Exception as error:  # the rounds after it can still move
                failures.append(error)
        try:
            self.judge_canary()
        except Exception as error:
            failures.append(error)
        if self.updates is not None:
            try:
                self.updates.renew()
            except Exception as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup("what could not be moved on", failures)

    def advance(self, round_id: str) -> None:
        with self._advancing:
            advance(
                self.database,
                self.blobs,
                round_id,
                self.settings.clock,
                self._evaluate,
                self._rehearse,
                self._workers,
                self._caps,
                self.settings.canary,
            )
            if self.settings.keep_models is not None:
                with self.database.read() as connection:
                    remove_old(connection, self.blobs, self.settings.keep_models)

    def create_round(self, settings: RoundSettings, *, opened: bool, by: str = BOOTSTRAP) -> dict[str, Any]:
        """Raises Refusal: 409 ``round_open``, 422 ``no_rehearsal`` for a rehearsal without speech to rehearse,
        ``privacy_cap`` for a round in which no device could report."""
        for name in ("rehearsal", "server_step"):
            if getattr(settings, name) is not None and self._rehearse is None:
                detail = "this server has no transcribed speech; start it with --rehearsal KIND:PATH"
                raise Refusal(422, "no_rehearsal", detail, name)
        for stream in settings.streams:
            cap = self.settings.cap(stream)
            first = Spent().plus(charge_for(stream, settings))
            if not math.isinf(cap) and compose(first, self.settings.delta_probability)[0] > cap:
                detail = f"{stream}: one report costs more than this server's cap {cap:g}; ask for more noise"
                raise Refusal(422, "privacy_cap", detail, stream)
        with self.database.write() as connection:
            now = self.settings.clock()
            round_id = create_round(connection, settings, now)
            record(connection, by, "round.create", round_id, now)
            if opened:
                open_round(connection, round_id, now, self._caps)
                record(connection, by, "round.open", round_id, now)
            return view(connection, find_round(connection, round_id))

    def open_round(self, round_id: str, by: str = BOOTSTRAP) -> dict[str, Any]:
        with self.database.write() as connection:
            now = self.settings.clock()
            open_round(connection, round_id, now, self._caps)
            record(connection, by, "round.open", round_id, now)
            return view(connection, find_round(connection, round_id))

    def close_round(self, round_id: str, by: str = BOOTSTRAP) -> dict[str, Any]:
        """Close an open round and wait until it is published or abandoned; one whose devices are adding up their counts
        takes no more of them and stays closing until they have. Closing it again returns its result."""
        with self.database.write() as connection:
            row = find_round(connection, round_id)
            if row.state == RoundState.PLANNED:
                check(RoundState.PLANNED, RoundState.CLOSING)
            if row.state == RoundState.OPEN:
                now = self.settings.clock()
                transition(connection, row, RoundState.CLOSING, now, f"closed by {by}")
                record(connection, by, "round.close", round_id, now)
        self.advance(round_id)
        with self.database.read() as connection:
            return view(connection, find_round(connection, round_id))

    def abandon_round(self, round_id: str, by: str = BOOTSTRAP) -> dict[str, Any]:
        """End a round without a release. What its reports were charged stays charged."""
        with self._advancing:
            now = self.settings.clock()

            def also(connection: Connection) -> None:
                record(connection, by, "round.abandon", round_id, now)

            abandon(self.database, self.blobs, round_id, now, f"abandoned by {by}", also)
        with self.database.read() as connection:
            return view(connection, find_round(connection, round_id))

    def judge_canary(self) -> None:
        """Promote the running canary's model, or take it back, as far as there is evidence."""
        with self._advancing:
            conduct.judge(self.database, self.blobs, self._evaluate, self.settings.clock(), self._caps)

    def promote_canary(self, note: str, *, force: bool, by: str = BOOTSTRAP) -> dict[str, Any]:
        """Raises Refusal: 409 ``no_canary``, ``worse``; 410 ``model_removed``."""
        with self._advancing:
            now = self.settings.clock()
            return conduct.promote(
                self.database, self.blobs, self._evaluate, now, by, note, caps=self._caps, force=force
            )

    def privacy(self) -> dict[str, dict[str, Any]]:
        """Per stream: epsilon, delta, adjacency, sampling, trust model, rounds."""
        with self.database.read() as connection:
            return ledger.summary(connection, self.settings.delta_probability)

    def status(self) -> dict[str, Any]:
        """What is current, and which rounds are under way."""
        with self.database.read() as connection:
            underway = rounds_in(connection, *_UNDERWAY)
            model = find_model(connection, current_version(connection, "model"))
            started = connection.execute(select(publications.c.at).order_by(publications.c.id).limit(1)).scalar()
            return {
                "model_version": model.version,
                "teacher_version": model.teacher,
                "marginals_version": int(current_version(connection, "marginals")),
                "devices": count_devices(connection),
                "since": started,
                "rounds": [view(connection, row) for row in underway],
            }

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            pause = self.settings.tick_seconds
            try:
                if self._lead.mine():
                    self.tick()
            except Exception:
                # The round stays where it is, its reports are safe; the next look tries again.
                log.exception("moving rounds on failed; trying again in %.0f s", PAUSE_AFTER_FAILURE)
                pause = PAUSE_AFTER_FAILURE
            self._wake.wait(pause)


def _workers(settings: ServerSettings, blobs: BlobStore) -> Workers:
    if settings.ray is not None:
        from server.aggregation.ray_workers import RayWorkers

        return RayWorkers(settings.blobs, settings.ray, settings.workers)
    if settings.workers is not None and settings.workers > 1:
        return Processes(settings.blobs, settings.workers)
    return Here(blobs)


_UNDERWAY = (
    RoundState.PLANNED,
    RoundState.OPEN,
    RoundState.CLOSING,
    RoundState.AGGREGATED,
    RoundState.EVALUATED,
)
