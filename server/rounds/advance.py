"""Moving a closing round to publication. Each step is one transaction: a round goes on where a killed server left it.

A step computes first and writes once. What it computes depends only on what earlier transactions stored, and so does
privacy noise: its secret key is stored before anything is drawn from it (:mod:`server.rounds.release_keys`)."""

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Row, select, update

from device_sdk.errors import LearningError, PrivacyError
from server.aggregation.tree_reduction import Workers
from server.plans.round import RolloutSettings, RoundSettings, RoundState
from server.privacy.ledger import Caps
from server.problems import Refusal
from server.registry.marginals import find_marginals
from server.registry.models import current_version, find_model, models_since_teacher, publish
from server.rounds.evaluation import Evaluate, Evaluation, compare
from server.rounds.release_keys import ReleaseKey, accepted_reports, digest_of, draws_noise, forget_keys, obtain_key
from server.rounds.releases import Lineage, Release, release_deltas, release_marginals, release_words, store_release
from server.rounds.rollout.conduct import begin
from server.rounds.secure_aggregation.progress import abandon_groups, settle
from server.rounds.secure_aggregation.store import clear, sum_groups
from server.rounds.server_step import Rehearse
from server.rounds.store import find_round, follow_up, read_settings, transition
from server.storage.blobs import BlobStore
from server.storage.database import Database, forget, overwrite
from server.storage.schema import reports, rounds

log = logging.getLogger("idiolect.server")


def advance(
    database: Database,
    blobs: BlobStore,
    round_id: str,
    clock: Callable[[], float],
    evaluate: Evaluate | None,
    rehearse: Rehearse | None,
    workers: Workers,
    caps: Caps,
    rollout: RolloutSettings | None,
) -> None:
    """Take a closing, aggregated or evaluated round as far as it goes: to published or abandoned. Where more rounds
    like it are to come, the next one is open then. caps: of what devices may be charged. rollout: how the model is
    tried on some devices first, which the next round waits for; None publishes it to all."""
    while True:
        with database.read() as connection:
            row = find_round(connection, round_id)
        match RoundState(row.state):
            case RoundState.CLOSING:
                if read_settings(row).aggregated and not settle(database, row, clock()):
                    return  # groups are still adding up their counts
                _aggregate(database, blobs, row, clock(), rehearse, workers, caps)
            case RoundState.AGGREGATED:
                _evaluate(database, blobs, row, clock(), evaluate)
            case RoundState.EVALUATED:
                _publish(database, row, clock(), rollout, caps)
            case _:
                return


def close_overdue(database: Database, round_id: str, now: float) -> None:
    """Close a round whose deadline has passed, where it is open."""
    with database.write() as connection:
        row = find_round(connection, round_id)
        if row.state == RoundState.OPEN and row.deadline <= now:
            transition(connection, row, RoundState.CLOSING, now, "deadline passed")


def give_up(database: Database, blobs: BlobStore, round_id: str, now: float, note: str, caps: Caps) -> None:
    """Abandon a round that keeps failing. Of rounds like it that are to come, the next opens: it may fare better."""

    def also(connection: Connection) -> None:
        row = find_round(connection, round_id)
        try:
            read_settings(row)
        except ValueError:  # they may be what is wrong with it
            return
        follow_up(connection, row, now, caps)

    abandon(database, blobs, round_id, now, note, also)


def remove_orphans(database: Database, blobs: BlobStore) -> None:
    """Delete raw deltas that no report points to: those of finished rounds, and uploads cut off by a crash. Call at
    start-up, before uploads are taken: an upload in progress has a blob before it has a row."""
    with database.read() as connection:
        wanted = set(connection.execute(select(reports.c.blob).where(reports.c.blob.is_not(None))).scalars())
    for name in blobs.names("deltas"):
        if name not in wanted:
            blobs.delete(name)


def _aggregate(
    database: Database,
    blobs: BlobStore,
    row: Row[Any],
    now: float,
    rehearse: Rehearse | None,
    workers: Workers,
    caps: Caps,
) -> None:
    settings = read_settings(row)
    found = _keys(database, row, settings, caps, now)
    if found is None:
        return
    keys, missing = found
    with database.read() as connection:
        accepted = {stream: accepted_reports(connection, row.id, stream, whole=True) for stream in settings.streams}
        base = find_model(connection, row.base_model)
        teacher = find_model(connection, base.teacher) if base.teacher is not None else None
        lineage = Lineage(base, teacher, models_since_teacher(connection, base))
        versions = (row.base_marginals, 0) if settings.marginals is not None else ()
        before = [find_marginals(connection, version) for version in versions]
        summed = sum_groups(connection, row.id) if settings.aggregated else None
    made: list[Release] = []
    diverged = False
    for stream, contributions in accepted.items():
        key = keys.get(stream)
        if len(contributions) < settings.minimum and not settings.amplified:
            missing.append(f"{stream}: {len(contributions)} reports, fewer than the minimum {settings.minimum}")
        elif draws_noise(stream, settings) and key is None:
            continue  # why is among what is missing
        elif stream == settings.aggregated and summed is None:
            missing.append(f"{stream}: no group has a sum")
        elif stream == "marginals":
            made.append(release_marginals(settings, contributions, before[0], before[1], summed, key))
        elif stream == "words":
            made.append(release_words(settings, contributions, key))
        else:
            held = contributions, summed, lineage, row
            try:
                made.append(release_deltas(blobs, settings, *held, rehearse, workers, key))
            except LearningError as error:
                missing.append(f"{stream}: {error}")
                diverged = True
    with database.write() as connection:
        current = find_round(connection, row.id)
        if current.state != RoundState.CLOSING:
            return  # another worker was first, with the same release
        if any(digest_of(accepted_reports(connection, row.id, each.stream)) != each.inputs_sha256 for each in made):
            return  # the reports changed meanwhile: these are released with a key and a charge of their own
        for release in made:
            store_release(connection, current, release, now)
        target = RoundState.AGGREGATED if made else RoundState.ABANDONED
        transition(connection, current, target, now, "; ".join(missing))
        if not made and not diverged:  # too few came this time: the next round may find more
            follow_up(connection, current, now, caps)
        used = _clear(connection, row.id, grouped=settings.aggregated is not None)
    for name in used:
        blobs.delete(name)


def _keys(
    database: Database, row: Row[Any], settings: RoundSettings, caps: Caps, now: float
) -> tuple[dict[str, ReleaseKey], list[str]] | None:
    """(keys of the streams that the server adds noise to, stored; why others have none), or None where another worker
    has released the round."""
    keys: dict[str, ReleaseKey] = {}
    missing: list[str] = []
    with database.write() as connection:
        if find_round(connection, row.id).state != RoundState.CLOSING:
            return None
        for stream in settings.streams:
            try:
                if draws_noise(stream, settings) and (
                    key := obtain_key(connection, row.id, stream, settings, caps, now)
                ):
                    keys[stream] = key
            except PrivacyError as error:
                missing.append(str(error))
    return keys, missing


def abandon(
    database: Database, blobs: BlobStore, round_id: str, now: float, note: str, also: Callable[[Connection], None]
) -> None:
    """End a round without a release; what was sent for it is deleted, what it was charged stays charged. also: done in
    the same transaction. Raises Refusal (409) for a round that has ended."""
    with database.write() as connection:
        transition(connection, find_round(connection, round_id), RoundState.ABANDONED, now, note)
        also(connection)
        abandon_groups(connection, round_id, note)
        unused = _clear(connection, round_id)
    for name in unused:
        blobs.delete(name)


def _clear(connection: Connection, round_id: str, *, grouped: bool = True) -> list[str]:
    """Take the raw contributions of a round out of the database, what was measured on single devices, and the keys of
    its noise and its sample; ids, hashes and charges stay. grouped: whether there may be groups that add up
    vectors. Returns their blobs, which may go once this is durable."""
    own = reports.c.round_id == round_id
    names = list(connection.execute(select(reports.c.blob).where(own, reports.c.blob.is_not(None))).scalars())
    overwrite(connection, "reports", round_id, texts=["counts"])
    nothing = dict.fromkeys(("counts", "blob", "loss", "word_error")) | dict.fromkeys(("size", "utterances"), 0)
    connection.execute(update(reports).where(own).values(**nothing, accepted_at=0.0))
    connection.execute(update(rounds).where(rounds.c.id == round_id).values(sampling_key=None))
    if grouped:
        clear(connection, round_id)
    forget_keys(connection, round_id)
    forget(connection, "reports", "rounds")
    return names


def _evaluate(database: Database, blobs: BlobStore, row: Row[Any], now: float, evaluate: Evaluate | None) -> None:
    verdict = Evaluation()
    if evaluate is not None and row.model_version is not None:
        verdict = compare(database, blobs, evaluate, row.model_version, row.base_model)
    found = {"passed": verdict.passed, "figures": dict(verdict.figures), "note": verdict.note}
    with database.write() as connection:
        current = find_round(connection, row.id)
        if current.state != RoundState.AGGREGATED:
            return
        connection.execute(update(rounds).where(rounds.c.id == row.id).values(evaluation=found))
        target = RoundState.EVALUATED if verdict.passed else RoundState.ABANDONED
        transition(connection, current, target, now, verdict.note)


def _publish(database: Database, row: Row[Any], now: float, rollout: RolloutSettings | None, caps: Caps) -> None:
    with database.write() as connection:
        current = find_round(connection, row.id)
        if current.state != RoundState.EVALUATED:
            return
        notes: list[str] = []
        tried, note = False, f"round {current.number}"
        for kind, version, base in (
            ("model", current.model_version, current.base_model),
            ("marginals", current.marginals_version, current.base_marginals),
        ):
            if version is None:
                continue
            if current_version(connection, kind) != str(base):  # an operator published another: theirs stays
                notes.append(f"{kind} {version} kept unpublished: its base {base} is no longer current")
            elif kind == "marginals" or rollout is None:
                publish(connection, kind, version, now, note)
            else:
                try:
                    begin(connection, version, rollout, now, note)
                    notes.append(f"model {version} goes to {100 * rollout.share:g} % of the devices first")
                    tried = True
                except Refusal as error:
                    notes.append(f"model {version} kept unpublished: {error.detail}")
        transition(connection, current, RoundState.PUBLISHED, now, "; ".join(notes))
        if not tried:
            follow_up(connection, current, now, caps)
    log.info("round %s published: model %s, marginals %s", row.id, row.model_version, row.marginals_version)
