"""Moving a closing round to publication. Each step is one transaction: a round goes on where a killed server left it.

A step computes first and writes once. What it computes depends only on what earlier transactions stored, except for
privacy noise: a draw that was not stored was seen by nobody, so drawing again after a crash is still one release.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, insert, select, update

from device_sdk.errors import IdiolectError, LearningError, StateError
from device_sdk.privacy.local import local_scale
from device_sdk.wire.messages import FIXED_POINT
from server.aggregation import deltas, optimizers
from server.aggregation import marginals as counting
from server.aggregation.optimizers import update_norm
from server.aggregation.weights_file import dump_weights, parse_weights, read_metadata
from server.privacy.laplace import laplace_scale, noise_variance, noised
from server.registry import marginals as marginal_registry
from server.registry import models as model_registry
from server.registry.publications import current_version, publish
from server.rounds.settings import RoundSettings
from server.rounds.states import RoundState
from server.rounds.store import find_round, read_settings, rounds_in, transition
from server.storage.blobs import BlobStore
from server.storage.database import Database
from server.storage.schema import releases, reports, rounds

__all__ = ["Evaluate", "Evaluation", "abandon", "advance", "close_overdue", "remove_orphans"]

log = logging.getLogger("idiolect.server")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Verdict on a round's model. figures: numbers to keep with the model; note: for people."""

    passed: bool = True
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = "no evaluation data: passed unseen"


Evaluate = Callable[[Mapping[str, NDArray[np.float32]]], Evaluation]
"""Looks at the weights a round made, before they are published."""


@dataclass(frozen=True, slots=True)
class _Release:
    """What one stream of a round releases, before it is written down."""

    stream: str
    inputs_sha256: str
    reports: int
    mechanism: dict[str, Any]
    variance: float = 0.0
    counts: NDArray[np.int64] | None = None
    entry: marginal_registry.MarginalEntry | None = None
    stored: model_registry.StoredModel | None = None
    optimizer_sha256: str | None = None
    figures: dict[str, float] = field(default_factory=dict)


def advance(
    database: Database,
    blobs: BlobStore,
    round_id: str,
    clock: Callable[[], float],
    evaluate: Evaluate | None = None,
) -> None:
    """Take a closing, aggregated or evaluated round as far as it goes: to published or abandoned."""
    while True:
        with database.read() as connection:
            row = find_round(connection, round_id)
        match RoundState(row.state):
            case RoundState.CLOSING:
                _aggregate(database, blobs, row, clock())
            case RoundState.AGGREGATED:
                _evaluate(database, blobs, row, clock(), evaluate)
            case RoundState.EVALUATED:
                _publish(database, row, clock())
            case _:
                return


def close_overdue(database: Database, now: float) -> None:
    """Close the open rounds whose deadline has passed."""
    with database.read() as connection:
        overdue = [row.id for row in rounds_in(connection, RoundState.OPEN) if row.deadline <= now]
    for round_id in overdue:
        with database.write() as connection:
            row = find_round(connection, round_id)
            if row.state == RoundState.OPEN:
                transition(connection, row, RoundState.CLOSING, now, "deadline passed")


def remove_orphans(database: Database, blobs: BlobStore) -> None:
    """Delete raw deltas that no report points to: those of finished rounds, and uploads cut off by a crash.

    Call at start-up, before uploads are taken: an upload in progress has a blob before it has a row.
    """
    with database.read() as connection:
        wanted = set(connection.execute(select(reports.c.blob).where(reports.c.blob.is_not(None))).scalars())
    for name in blobs.names("deltas"):
        if name not in wanted:
            blobs.delete(name)


def _aggregate(database: Database, blobs: BlobStore, row: Row[Any], now: float) -> None:
    settings = read_settings(row)
    with database.read() as connection:
        accepted = {stream: _accepted(connection, row.id, stream) for stream in settings.streams}
        base = model_registry.find_model(connection, row.base_model)
        previous = marginal_registry.find_marginals(connection, row.base_marginals)
        background = marginal_registry.find_marginals(connection, 0)
    made: list[_Release] = []
    missing: list[str] = []
    for stream, contributions in accepted.items():
        if len(contributions) < settings.minimum:
            missing.append(f"{stream}: {len(contributions)} reports, fewer than the minimum {settings.minimum}")
        elif stream == "marginals":
            made.append(_release_marginals(settings, contributions, previous, background))
        else:
            try:
                made.append(_release_deltas(blobs, settings, contributions, base))
            except LearningError as error:
                missing.append(f"{stream}: {error}")
    with database.write() as connection:
        current = find_round(connection, row.id)
        if current.state != RoundState.CLOSING:
            return  # another worker stored its release first: this draw is dropped unseen
        for release in made:
            _store_release(connection, current, release, now)
        target = RoundState.AGGREGATED if made else RoundState.ABANDONED
        transition(connection, current, target, now, "; ".join(missing))
        used = _clear(connection, row.id)
    for name in used:
        blobs.delete(name)


def abandon(database: Database, blobs: BlobStore, round_id: str, now: float, note: str) -> None:
    """End a round without a release; what was sent for it is deleted, what it was charged stays charged.

    Raises Refusal (409) for a round that has ended.
    """
    with database.write() as connection:
        transition(connection, find_round(connection, round_id), RoundState.ABANDONED, now, note)
        unused = _clear(connection, round_id)
    for name in unused:
        blobs.delete(name)


def _clear(connection: Connection, round_id: str) -> list[str]:
    """Take the raw contributions of a round out of the database; ids, hashes and charges stay. Returns their blobs,
    which may go once this is durable."""
    own = reports.c.round_id == round_id
    names = list(connection.execute(select(reports.c.blob).where(own, reports.c.blob.is_not(None))).scalars())
    connection.execute(update(reports).where(own).values(counts=None, blob=None))
    return names


def _accepted(connection: Connection, round_id: str, stream: str) -> list[Row[Any]]:
    """In report-id order: a resumed aggregation adds in the same order and rounds the same way."""
    query = select(reports).where(reports.c.round_id == round_id, reports.c.stream == stream).order_by(reports.c.id)
    return list(connection.execute(query))


def _inputs_sha256(contributions: list[Row[Any]]) -> str:
    digest = sha256()
    for contribution in contributions:
        digest.update(f"{contribution.id} {contribution.body_sha256}\n".encode())
    return digest.hexdigest()


def _release_marginals(
    settings: RoundSettings, contributions: list[Row[Any]], previous: Row[Any], background: Row[Any]
) -> _Release:
    plan = settings.marginals
    assert plan is not None
    total = counting.init(marginal_registry.read_counts(previous).size)
    for contribution in contributions:
        total = counting.add(total, {int(word): count for word, count in (contribution.counts or {}).items()})
    if plan.trust == "central":
        drawn, draws, scale = noised(total.total, plan), 1, laplace_scale(plan)
    else:  # every report carries its own noise
        drawn, draws, scale = total.total, total.reports, float(local_scale(plan))
    variance = draws * noise_variance(scale) / FIXED_POINT**2
    released = marginal_registry.read_counts(previous) + drawn
    cumulative = previous.variance + variance
    probabilities = counting.global_marginal(
        released, cumulative, marginal_registry.read_probabilities(background), settings.smoothing, settings.suppression
    )
    kept = counting.surviving_counts(released, cumulative, settings.suppression)
    return _Release(
        stream="marginals",
        inputs_sha256=_inputs_sha256(contributions),
        reports=len(contributions),
        mechanism={
            "name": "discrete_laplace",
            "trust": plan.trust,
            "scale": scale / FIXED_POINT,
            "epsilon": plan.epsilon,
            "max_words": plan.max_words,
            "max_weight": plan.max_weight,
        },
        variance=variance,
        counts=drawn,
        entry=marginal_registry.MarginalEntry(previous.words_digest, probabilities, released, cumulative),
        figures={
            "surviving_words": float(np.count_nonzero(kept)),
            "surviving_count": float(kept.sum()),
            "noise_deviation": float(np.sqrt(cumulative)),
        },
    )


def _release_deltas(
    blobs: BlobStore, settings: RoundSettings, contributions: list[Row[Any]], base: Row[Any]
) -> _Release:
    plan = settings.deltas
    assert plan is not None
    weights = model_registry.load(blobs, base.sha256)
    shapes = model_registry.trainable(weights)
    total = deltas.init(shapes)
    for contribution in contributions:
        weight = 1.0
        if settings.weighting == "utterances":
            weight = float(min(contribution.utterances, settings.weight_limit))
        content = blobs.get(contribution.blob)
        if sha256(content).hexdigest() != contribution.body_sha256:
            raise StateError(f"{contribution.blob}: differs from what was accepted; restore it or abandon the round")
        total = deltas.add(total, parse_weights(content), weight)
    noisy = plan.noise_stddev > 0
    mean = deltas.finish(total, float(settings.goal or 1) if noisy else None)
    state = optimizers.init(settings.optimizer, shapes)
    if base.optimizer_sha256 is not None:
        content = blobs.get(model_registry.blob_name(base.optimizer_sha256))
        state = optimizers.state_from_arrays(parse_weights(content), read_metadata(content))
    with np.errstate(over="ignore", invalid="ignore"):  # looked for right below
        updated, state = optimizers.apply(settings.optimizer, state, weights, mean)
    if not all(np.isfinite(values).all() for values in updated.values()):
        raise LearningError("the server optimizer diverged; lower its learning rate")
    optimizer_sha256 = None
    if settings.optimizer.kind != "sgd":
        arrays, metadata = optimizers.state_to_arrays(state)
        content = dump_weights(arrays, metadata)
        optimizer_sha256 = sha256(content).hexdigest()
        blobs.put(model_registry.blob_name(optimizer_sha256), content)
    inputs = _inputs_sha256(contributions)
    return _Release(
        stream="deltas",
        inputs_sha256=inputs,
        reports=len(contributions),
        mechanism={
            "name": "gaussian" if noisy else "none",
            "trust": "share" if noisy else "none",
            "clip_norm": plan.clip_norm,
            "noise_stddev": plan.noise_stddev,
            "denominator": float(settings.goal or 1) if noisy else total.weight,
        },
        stored=model_registry.store(blobs, updated, {"parent": base.version, "inputs": inputs}),
        optimizer_sha256=optimizer_sha256,
        figures={"update_norm": update_norm(updated, weights), "reports": float(len(contributions))},
    )


def _store_release(connection: Connection, row: Row[Any], release: _Release, now: float) -> None:
    model_version: str | None = None
    if release.entry is not None:
        version = marginal_registry.next_version(connection)
        marginal_registry.add_marginals(
            connection,
            version,
            release.entry,
            now=now,
            parent=row.base_marginals,
            round_id=row.id,
            figures=release.figures,
            note=f"round {row.number}",
        )
        connection.execute(update(rounds).where(rounds.c.id == row.id).values(marginals_version=version))
    if release.stored is not None:
        model_version = f"{row.id}-{release.stored.sha256[:8]}"
        model_registry.add_model(
            connection,
            model_version,
            release.stored,
            now=now,
            parent=row.base_model,
            round_id=row.id,
            optimizer_sha256=release.optimizer_sha256,
            figures=release.figures,
            note=f"round {row.number}",
        )
        connection.execute(update(rounds).where(rounds.c.id == row.id).values(model_version=model_version))
    connection.execute(
        insert(releases).values(
            round_id=row.id,
            stream=release.stream,
            inputs_sha256=release.inputs_sha256,
            reports=release.reports,
            mechanism=release.mechanism,
            counts=release.counts.astype("<i8").tobytes() if release.counts is not None else None,
            variance=release.variance,
            model_version=model_version,
            drawn_at=now,
        )
    )


def _evaluate(database: Database, blobs: BlobStore, row: Row[Any], now: float, evaluate: Evaluate | None) -> None:
    verdict = Evaluation()
    if evaluate is not None and row.model_version is not None:
        with database.read() as connection:
            model = model_registry.find_model(connection, row.model_version)
        try:
            verdict = evaluate(model_registry.load(blobs, model.sha256))
        except IdiolectError as error:  # a model that cannot be looked at is not published
            verdict = Evaluation(passed=False, note=f"evaluation failed: {error}")
    found = {"passed": verdict.passed, "figures": dict(verdict.figures), "note": verdict.note}
    with database.write() as connection:
        current = find_round(connection, row.id)
        if current.state != RoundState.AGGREGATED:
            return
        connection.execute(update(rounds).where(rounds.c.id == row.id).values(evaluation=found))
        target = RoundState.EVALUATED if verdict.passed else RoundState.ABANDONED
        transition(connection, current, target, now, verdict.note)


def _publish(database: Database, row: Row[Any], now: float) -> None:
    with database.write() as connection:
        current = find_round(connection, row.id)
        if current.state != RoundState.EVALUATED:
            return
        notes = []
        for kind, version, base in (
            ("model", current.model_version, current.base_model),
            ("marginals", current.marginals_version, current.base_marginals),
        ):
            if version is None:
                continue
            if current_version(connection, kind) == str(base):
                publish(connection, kind, version, now, f"round {current.number}")
            else:  # an operator published another version meanwhile: theirs stays
                notes.append(f"{kind} {version} kept unpublished: its base {base} is no longer current")
        transition(connection, current, RoundState.PUBLISHED, now, "; ".join(notes))
    log.info("round %s published: model %s, marginals %s", row.id, row.model_version, row.marginals_version)
