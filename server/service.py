"""One running server: its database, its blobs, and the thread that moves rounds on."""

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Self

from sqlalchemy import select

from device_sdk.wire.messages import DeltaPlan, Part
from device_sdk.wire.secure_aggregation import MAX_MASKED_BYTES, MAX_WORDS
from server.aggregation.processes import Processes
from server.aggregation.tree_reduction import LocalWorkers, Workers
from server.devices.enrolment import count_devices
from server.memory import BodyMemory
from server.metrics import Metrics
from server.operators.accounts import BOOTSTRAP, record
from server.plans.round import STREAMS, UNDERWAY, RoundSettings, RoundState, check, word_bits
from server.privacy import ledger
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose, run_unhurried
from server.privacy.ledger import Caps
from server.privacy.protection import check_protection
from server.problems import Refusal
from server.processes import shared_key
from server.rate_limit import Buckets
from server.readiness import Readiness, Ready
from server.registry.differences import Differences
from server.registry.initial import InitialModel, register_initial
from server.registry.models import current_version, find_model, load, trainable
from server.registry.retention import is_due, remove_old
from server.rounds.advance import abandon, advance, close_overdue, give_up, remove_orphans
from server.rounds.evaluation import Evaluate
from server.rounds.pacing import Fleet
from server.rounds.patience import Setbacks, describe_error
from server.rounds.retention import forget_old
from server.rounds.rollout import conduct
from server.rounds.secure_aggregation.progress import abandon_group, advance_group
from server.rounds.secure_aggregation.store import open_groups
from server.rounds.server_step import Rehearse
from server.rounds.store import (
    create_round,
    find_round,
    open_round,
    read_settings,
    rounds_in,
    transition,
    unfinished,
    view,
)
from server.settings import ServerSettings
from server.signing.repository import Repository
from server.storage.blobs import BlobStore, lock_folder
from server.storage.database import Database
from server.storage.lock import Lead, Lock
from server.storage.objects import open_blobs
from server.storage.schema import publications
from server.ticks import LOOP, TOLD_SECONDS, Seen, Ticks, seen_of, tell

log = logging.getLogger("idiolect.server")

PAUSE_AFTER_FAILURE = 10.0
SHORTEST_PAUSE = 0.05
ROLLOUT, RETENTION, UPDATES = "rollout", "retention", "updates"
"""Names of what is looked after beside rounds and groups."""


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
        with ExitStack() as opened:
            if not settings.member:
                # Two servers would each take the other's uploads in progress for leftovers of a crash.
                opened.callback(lock_folder(settings.lock_folder).close)
            self.database = Database(settings.database_url, settings.connections)
            opened.callback(self.database.close)
            self.database.claim(processes=settings.processes, member=settings.member)
            self.blobs = open_blobs(settings.blobs, tidy=not settings.member)
            self.metrics, self.readiness, self.ticks, self.fleet = Metrics(), Readiness(), Ticks(), Fleet()
            rates = settings.rates
            self.address_rates, self.device_rates, self.enrolment_rates = (
                Buckets(rate, rates.remembered, time.monotonic)
                for rate in (rates.address, rates.device, rates.enrolment)
            )
            self.ticket_key = shared_key()
            self._setbacks = Setbacks(time.monotonic)
            self._leading, self._began = not settings.member, time.time()
            self.words: tuple[str, ...] = initial.words if initial is not None else ()
            self.listed = frozenset(self.words)
            self._evaluate, self._rehearse = evaluate, rehearse
            self._workers = _workers(settings, self.blobs)
            self.differences = Differences(self.blobs)
            self._shapes: dict[tuple[str, Part], dict[str, tuple[int, ...]]] = {}
            self._advancing, self._lead = Lock(self.database), Lead(self.database)
            self._wake, self._stopping = threading.Event(), threading.Event()
            self._ticker: threading.Thread | None = None
            self._teller: threading.Thread | None = None
            if initial is not None:
                register_initial(self.database, self.blobs, initial, settings.clock())
            with self.database.read() as connection:
                model = find_model(connection, current_version(connection, "model"))
            # A delta holds no constants, so the model's own size bounds it.
            self.delta_bytes = model.size + settings.limits.delta_overhead
            self.bodies = BodyMemory(max(settings.limits.held_bytes, 4 * self.delta_bytes))
            updates = settings.updates
            self.updates = None if updates is None else Repository(updates, self.database, settings.clock)
            if not settings.member:
                remove_orphans(self.database, self.blobs)
            self.database.remember_nothing()
            self._opened = opened.pop_all()

    def start(self) -> None:
        """Start moving rounds on: first those that a stopped or killed server left half-way."""
        self._ticker = threading.Thread(target=self._run, name="idiolect-rounds", daemon=True)
        self._ticker.start()
        if self.settings.member:
            self._teller = threading.Thread(target=self._tell, name="idiolect-ticks", daemon=True)
            self._teller.start()

    def close(self) -> None:
        self._stopping.set()
        self._wake.set()
        for thread in (self._ticker, self._teller):
            if thread is not None:
                thread.join()
        self._workers.close()
        self._lead.close()
        self._opened.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shapes(self, digest: str, part: Part) -> dict[str, tuple[int, ...]]:
        """Names and shapes that a delta of a part of a stored model must have."""
        shapes, key = self._shapes, (digest, part)
        if key not in shapes:  # rounds follow each other: only the newest base is asked for
            self._shapes = shapes = {key: trainable(load(self.blobs, digest), part)}
        return shapes[key]

    @property
    def caps(self) -> Caps:
        return Caps(self.settings.delta_probability, {stream: self.settings.cap(stream) for stream in STREAMS})

    @property
    def ready(self) -> Ready:
        """Whether this process can serve, as it was found some seconds ago at most."""
        alive = self._ticker is not None and self._ticker.is_alive()
        return self.readiness.look(self.database, self.blobs, self.settings, alive, self.seen)

    def seen(self) -> Seen:
        """When the loop and every unfinished round last had a good tick, of whichever process leads."""
        if self._leading:
            return self.ticks.seen
        with self.database.read() as connection:
            return seen_of(connection, time.time(), self._began)

    def wake(self) -> None:
        """Have rounds looked at now: one has just reached its goal."""
        self._wake.set()

    def tick(self) -> None:
        """Close what is overdue, move every group and round that can move, forget the oldest rounds, and sign what was
        published. Each by itself: one that fails holds up no other, is tried again after a pause, and in the end given
        up (:mod:`server.rounds.patience`). Raises an ExceptionGroup of what failed this time, once all was tried."""
        failures: list[Exception] = []
        with self.database.read() as connection:
            rows = unfinished(connection)
            groups = {row.id: open_groups(connection, row.id) for row in rows}
        self.ticks.watch(groups)
        names = {round_id: [round_id, *(f"group {each}" for each in found)] for round_id, found in groups.items()}
        self._setbacks.keep([ROLLOUT, RETENTION, UPDATES, *(name for own in names.values() for name in own)])
        for row in rows:
            now = self.settings.clock()
            if row.state == RoundState.OPEN and row.deadline <= now:
                close = partial(close_overdue, self.database, row.id, now)
                self._attempt(row.id, close, failures, partial(self._give_up, row.id))
            elif row.state == RoundState.OPEN:
                self._setbacks.passed(row.id)  # a clock that was set back
            for group_id, name in zip(groups[row.id], names[row.id][1:], strict=True):
                drop = partial(abandon_group, self.database, row.id, group_id)
                self._attempt(name, partial(advance_group, self.database, group_id, now), failures, drop)
        with self.database.read() as connection:
            ready = [row.id for row in unfinished(connection) if row.state != RoundState.OPEN]
        for round_id in ready:
            with self.ticks.working():
                self._attempt(round_id, partial(self.advance, round_id), failures, partial(self._give_up, round_id))
        for round_id, own in names.items():
            if not any(self._setbacks.holds(name) for name in own):
                self.ticks.good(round_id)
        with self.ticks.working():
            self._attempt(ROLLOUT, self.judge_rollout, failures)
        if (keep := self.settings.keep_rounds) is not None:
            with self.ticks.working():
                self._attempt(RETENTION, lambda: forget_old(self.database, keep), failures)
        if self.updates is not None:
            self._attempt(UPDATES, self.updates.renew, failures)
        self.ticks.good(LOOP)
        if failures:
            raise ExceptionGroup("what could not be moved on", failures)

    def _attempt(
        self,
        name: str,
        step: Callable[[], object],
        failures: list[Exception],
        give_up: Callable[[str], None] | None = None,
    ) -> None:
        """Do a step unless it failed a moment ago. give_up: called with why, once it failed too often."""
        if not self._setbacks.is_due(name):
            return
        try:
            step()
        except Exception as error:
            failures.append(error)
            if not self._setbacks.failed(name, error) or give_up is None:
                return
            note = f"kept failing: {describe_error(error)}"
            log.error("%s is given up: %s", name, note)
            try:
                give_up(note)
            except Exception as trouble:  # it is tried again after a pause, and then given up
                failures.append(trouble)
        else:
            self._setbacks.passed(name)

    def _give_up(self, round_id: str, note: str) -> None:
        with self._advancing:
            now = self.settings.clock()
            run_unhurried(give_up, self.database, self.blobs, round_id, now, note, self.caps)

    def advance(self, round_id: str) -> None:
        with self._advancing:
            how = (self._evaluate, self._rehearse, self._workers, self.caps, self.settings.rollout)
            run_unhurried(advance, self.database, self.blobs, round_id, self.settings.clock, *how)
            if (keep := self.settings.keep_models) is None:
                return
            with self.database.read() as connection:
                due = is_due(connection, self.blobs, keep)
            if due:
                with self.database.write() as connection:
                    remove_old(connection, self.blobs, keep, self.settings.clock())

    def create_round(self, settings: RoundSettings, *, opened: bool, by: str = BOOTSTRAP) -> dict[str, Any]:
        """Raises Refusal: 409 ``round_open``, 422 ``no_rehearsal`` for a rehearsal without speech to rehearse,
        ``too_many_values`` for masked deltas of too much of the model, ``privacy_cap`` for a round in which no device
        could report, ``no_privacy`` for one that protects nobody and does not say so."""
        for name in ("rehearsal", "server_step"):
            if getattr(settings, name) is not None and self._rehearse is None:
                detail = "this server has no transcribed speech; start it with --rehearsal KIND:PATH"
                raise Refusal(422, "no_rehearsal", detail, name)
        if settings.aggregated == "deltas" and settings.deltas is not None:
            self._check_size(settings.deltas, settings.groups.size)
        for stream in settings.streams:
            cap = self.settings.cap(stream)
            first = Spent().plus(charge_for(stream, settings))
            if not math.isinf(cap) and compose(first, self.settings.delta_probability)[0] > cap:
                detail = f"{stream}: one report costs more than this server's cap {cap:g}; ask for more noise"
                raise Refusal(422, "privacy_cap", detail, stream)
        check_protection(settings, self.caps)
        return run_unhurried(self._begin, settings, opened, by)

    def _check_size(self, plan: DeltaPlan, devices: int) -> None:
        """Whether deltas of this part of the current model can be masked in groups of so many devices."""
        with self.database.read() as connection:
            base = find_model(connection, current_version(connection, "model"))
        values = sum(map(math.prod, self.shapes(base.sha256, plan.part).values()))
        bits = word_bits(plan, devices, values)
        if values > (most := min(MAX_WORDS, 8 * MAX_MASKED_BYTES // bits)):
            found = f"{plan.part!r} of model {base.version} has {values} values of {bits} bits"
            detail = f"deltas.part: {found}, expected at most {most} of them; take a smaller part, or fewer deltas.bits"
            raise Refusal(422, "too_many_values", detail, "deltas.part")

    def open_round(self, round_id: str, by: str = BOOTSTRAP) -> dict[str, Any]:
        """Open one that is planned. Raises Refusal as :meth:`create_round` does, since bounds may have changed."""
        with self.database.read() as connection:
            check_protection(read_settings(find_round(connection, round_id)), self.caps)
        return run_unhurried(self._begin, round_id, True, by)

    def _begin(self, wanted: RoundSettings | str, opened: bool, by: str) -> dict[str, Any]:
        """In one transaction. wanted: settings of a round to create, or the id of one that is planned."""
        with self.database.write() as connection:
            now = self.settings.clock()
            if isinstance(wanted, str):
                round_id = wanted
            else:
                round_id = create_round(connection, wanted, now)
                record(connection, by, "round.create", round_id, now)
            if opened:
                open_round(connection, round_id, now, self.caps)
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
        return self.view_round(round_id)

    def abandon_round(self, round_id: str, by: str = BOOTSTRAP) -> dict[str, Any]:
        """End a round without a release. What its reports were charged stays charged."""
        with self._advancing:
            now = self.settings.clock()
            also = partial(record, operator=by, action="round.abandon", subject=round_id, now=now)
            abandon(self.database, self.blobs, round_id, now, f"abandoned by {by}", also)
        return self.view_round(round_id)

    def view_round(self, round_id: str) -> dict[str, Any]:
        """A round as operators see it. Raises Refusal (404)."""
        with self.database.read() as connection:
            return view(connection, find_round(connection, round_id))

    def judge_rollout(self) -> None:
        """Promote the running rollout's model, or take it back, as far as there is evidence."""
        with self._advancing:
            now = self.settings.clock()
            run_unhurried(conduct.judge, self.database, self.blobs, self._evaluate, now, self.caps)

    def promote_rollout(self, note: str, *, force: bool, by: str = BOOTSTRAP) -> dict[str, Any]:
        """Raises Refusal: 409 ``no_rollout``, ``worse``; 410 ``model_removed``."""
        with self._advancing:
            given = (self.database, self.blobs, self._evaluate, self.settings.clock(), by, note)
            return run_unhurried(conduct.promote, *given, caps=self.caps, force=force)

    def privacy(self) -> dict[str, dict[str, Any]]:
        """Per stream: epsilon, delta, adjacency, sampling, trust model, rounds."""
        with self.database.read() as connection:
            return ledger.summary(connection, self.settings.delta_probability)

    def status(self) -> dict[str, Any]:
        """What is current, and which rounds are under way."""
        with self.database.read() as connection:
            underway = rounds_in(connection, *UNDERWAY)
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
            failed = False
            try:
                leads = self._lead.mine()
                if leads and not self._leading:
                    self.ticks.begin()
                self._leading = leads
                if leads:
                    self.tick()
            except ExceptionGroup:  # all others went on; what failed has pauses of its own
                log.exception("moving rounds on failed in part; trying that again")
            except Exception:
                # The round stays where it is, its reports are safe; the next look tries again.
                log.exception("moving rounds on failed; trying again in %.0f s", PAUSE_AFTER_FAILURE)
                failed = True
            try:
                self.database.clean()  # every process cleans up after itself, whoever has the lead
            except Exception:
                log.exception("what was forgotten could not be taken out of the database's files; it is tried again")
            usual = min(self.settings.tick_seconds, max(SHORTEST_PAUSE, self._setbacks.seconds_left))
            self._wake.wait(PAUSE_AFTER_FAILURE if failed else usual)

    def _tell(self) -> None:
        """Of several processes, the one that leads writes down for the others how rounds go."""
        while not self._stopping.wait(TOLD_SECONDS):
            if not self._leading:
                continue
            try:
                with self.database.write() as connection:
                    tell(connection, self.ticks.seen, time.time())
            except Exception:
                log.exception("writing down how rounds go failed; trying again in %.0f s", TOLD_SECONDS)


def _workers(settings: ServerSettings, blobs: BlobStore) -> Workers:
    if settings.ray is not None:
        from server.aggregation.ray_cluster import RayWorkers

        return RayWorkers(settings.blobs, settings.ray, settings.workers)
    if settings.workers is not None and settings.workers > 1:
        return Processes(settings.blobs, settings.workers)
    return LocalWorkers(blobs)
