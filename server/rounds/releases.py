"""What a stream of a round releases: noised counts and the marginals they make, a model and its teacher, or words."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, insert, update

from device_sdk.errors import LearningError, PrivacyError, StateError
from device_sdk.learning import teacher as teachers
from device_sdk.learning.settings import TeacherSettings
from device_sdk.privacy.quantised import parted, summed
from device_sdk.wire.messages import FIXED_POINT, DeltaPlan
from server.aggregation import deltas, optimizers, robust
from server.aggregation import marginals as counting
from server.aggregation.deltas import Grid, in_units, noise_grid, noised_sum, report_weights
from server.aggregation.optimizers import update_norm
from server.aggregation.tree_reduction import Accepted, Workers, leaves, merge_all, read_accepted
from server.aggregation.validation import norm_bound
from server.aggregation.weights_file import dump_weights, parse_weights, read_metadata
from server.plans.round import RoundSettings
from server.privacy.new_words import devices_of, noise_scale, released_words, threshold
from server.privacy.noise import add_noise, plan_noise, released_variance
from server.registry import marginals as marginal_registry
from server.registry import models as model_registry
from server.rounds.release_keys import ReleaseKey, digest_of
from server.rounds.server_step import Rehearse, Weights, take_server_step
from server.storage.blobs import BlobStore
from server.storage.schema import releases, rounds


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a round's model begins. base: its row; teacher: the teacher's beside it, None where it has none; models:
    made since that teacher was."""

    base: Row[Any]
    teacher: Row[Any] | None
    models: int


@dataclass(frozen=True, slots=True)
class Release:
    """What one stream releases, before it is written down. teacher: a new one; teacher_version: the one to go on with
    where there is no new one. words: new ones with the noised number of devices that named each."""

    stream: str
    inputs_sha256: str
    reports: int
    mechanism: dict[str, Any]
    variance: float = 0.0
    counts: NDArray[np.int64] | None = None
    words: dict[str, int] | None = None
    entry: marginal_registry.MarginalEntry | None = None
    stored: model_registry.StoredModel | None = None
    teacher: model_registry.StoredModel | None = None
    teacher_version: str | None = None
    optimizer_sha256: str | None = None
    figures: dict[str, float] = field(default_factory=dict)


def release_marginals(
    settings: RoundSettings,
    contributions: Sequence[Row[Any]],
    previous: Row[Any],
    background: Row[Any],
    aggregate: NDArray[np.int64] | None,
    key: ReleaseKey | None,
) -> Release:
    """The sum of the reports' counts, and the distribution that it makes of the ``previous`` one: with the server's
    noise under trust ``central``, as it is where the devices have added theirs. Bounded counts are added to what was
    released before, and what does not stand out of the noise is dropped. Those of mode ``paper`` are all counts so far
    and take its place (Liu & Peng 2020, eq. 8). aggregate: int64 [words], where secure aggregation took the sum and the
    reports show no counts. Raises PrivacyError where the server adds noise and ``key`` is not that of these reports."""
    plan, inputs = settings.marginals, digest_of(contributions)
    assert plan is not None
    if aggregate is None:
        counts = ({int(word): count for word, count in (row.counts or {}).items()} for row in contributions)
        aggregate = counting.sum_counts(counts, marginal_registry.read_counts(previous).size)
    drawn = aggregate
    if plan.trust == "central":
        drawn = add_noise(aggregate, plan, _checked(key, inputs).source(aggregate.tobytes()))
    variance = released_variance(plan, len(contributions))
    if plan.mode == "paper":
        released, cumulative = drawn, variance
        kept = counting.nearest_counts(released)
    else:
        released = marginal_registry.read_counts(previous) + drawn
        cumulative = previous.variance + variance
        kept = counting.surviving_counts(released, cumulative, plan.mechanism, settings.suppression)
    probabilities = counting.smoothed(kept, marginal_registry.read_probabilities(background), settings.smoothing)
    return Release(
        stream="marginals",
        inputs_sha256=inputs,
        reports=len(contributions),
        mechanism={
            "name": plan.mechanism,
            **plan.model_dump(include={"mode", "trust", "epsilon", "max_words", "max_weight", "minimum_survivors"}),
            "scale": plan_noise(plan).scale / FIXED_POINT,
            "delta": plan.delta if plan.mechanism == "discrete_gaussian" else 0.0,
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


def release_deltas(
    blobs: BlobStore,
    settings: RoundSettings,
    contributions: Sequence[Row[Any]],
    aggregate: NDArray[np.int64] | None,
    lineage: Lineage,
    row: Row[Any],
    rehearse: Rehearse | None,
    workers: Workers,
    key: ReleaseKey | None,
) -> Release:
    """The model that the mean of the reports and of the rehearsal makes of the base, and the teacher after it.
    aggregate: int64 [values], where secure aggregation took the sum and the reports show no deltas. row: of the round.
    workers: who adds the reports up, which no result depends on. key: of the server's noise, where it adds some. Raises
    LearningError where the optimizer diverges, StateError where a stored report is not what was accepted
    or the round wants a rehearsal that this server cannot give."""
    plan, base, inputs = settings.deltas, lineage.base, digest_of(contributions)
    assert plan is not None
    weights = model_registry.load(blobs, base.sha256)
    shapes = model_registry.trainable(weights, plan.part)
    grid = _grid(settings, plan, shapes)
    if settings.aggregated == "deltas":
        total = _masked_sum(plan, aggregate, len(contributions), shapes, row.id)
    else:
        total = deltas.fold(_sum(blobs, settings, plan, contributions, shapes, workers, grid))
    if settings.noise_multiplier:
        digest = sha256()
        for name in sorted(total.sum):
            digest.update(np.ascontiguousarray(total.sum[name]).data)
        source = _checked(key, inputs).source(digest.digest())
        total = replace(total, sum=noised_sum(total.sum, plan.clip_norm, settings.noise_multiplier, source))
    elif grid is not None:  # the devices have added their noise
        total = replace(total, sum=in_units(total.sum, grid))
    rehearsed = 0.0
    if settings.rehearsal is not None:
        if rehearse is None:
            raise StateError("rehearsal: this server has no transcribed speech; start it with --rehearsal KIND:PATH")
        for sent in rehearse(weights, settings, row.number):
            total = deltas.add(total, {name: sent[name] for name in shapes}, settings.rehearsal_weight)
        rehearsed = settings.rehearsal_weight * settings.rehearsal.pseudo_devices
    fixed = settings.denominator(row.eligible)
    denominator = total.weight if fixed is None else fixed + rehearsed
    mean = deltas.finish(total, denominator)
    if plan.kind == "gradient":  # a delta points where the loss falls, a gradient where it rises
        mean = {name: -gradient for name, gradient in mean.items()}
    still = model_registry.trainable(weights).items() - shapes.items()
    mean |= {name: np.zeros(shape, np.float32) for name, shape in still}
    updated, state = _apply(blobs, settings, base, weights, mean)
    updated |= {name: weights[name] for name, _ in still}  # whatever momentum former rounds left
    if settings.server_step is not None:
        updated = take_server_step(settings.server_step, updated, row.number, rehearse)
    optimizer_sha256 = None
    if settings.optimizer.kind != "sgd":
        arrays, metadata = optimizers.state_to_arrays(state)
        content = dump_weights(arrays, metadata)
        optimizer_sha256 = sha256(content).hexdigest()
        blobs.put(model_registry.blob_name(optimizer_sha256), content)
    teacher, teacher_version = _follow(blobs, settings, lineage, weights, updated)
    return Release(
        stream="deltas",
        inputs_sha256=inputs,
        reports=len(contributions),
        mechanism={
            **_noise_of(settings, plan),
            **plan.model_dump(include={"kind", "part", "clip_norm", "clipping", "encoding", "noise_stddev"}),
            **settings.model_dump(include={"averaging", "weighting", "noise_multiplier"}),
            "denominator": denominator,
            "sampling_rate": settings.sampling.rate if settings.amplified and settings.sampling else None,
            "pseudo_devices": settings.rehearsal.pseudo_devices if settings.rehearsal is not None else 0,
            "rehearsal_weight": rehearsed,
        },
        stored=model_registry.store(blobs, updated, {"parent": base.version, "inputs": inputs}),
        teacher=teacher,
        teacher_version=teacher_version,
        optimizer_sha256=optimizer_sha256,
        figures={"update_norm": update_norm(updated, weights), "reports": float(len(contributions))},
    )


def release_words(settings: RoundSettings, contributions: Sequence[Row[Any]], key: ReleaseKey | None) -> Release:
    """The words that so many devices named that one of them cannot have made the difference, but for a chance of delta.
    Raises PrivacyError where ``key`` is not that of these inputs."""
    plan, inputs = settings.words, digest_of(contributions)
    assert plan is not None
    devices = devices_of((set(row.counts or ()) for row in contributions), frozenset(), plan)
    named = "\n".join(f"{word} {count}" for word, count in devices.items())
    return Release(
        stream="words",
        inputs_sha256=inputs,
        reports=len(contributions),
        mechanism={
            "name": "discrete_laplace",
            "trust": "central",
            "scale": float(noise_scale(plan)),
            "threshold": threshold(plan),
            **plan.model_dump(include={"epsilon", "delta", "max_words"}),
        },
        words=released_words(devices, plan, _checked(key, inputs).source(named.encode())),
    )


def store_release(connection: Connection, row: Row[Any], release: Release, now: float) -> None:
    """Write a release down, with the versions that it makes, in the caller's transaction."""
    made: dict[str, Any] = {}
    own = {"now": now, "round_id": row.id}
    of_round = own | {"figures": release.figures, "note": f"round {row.number}"}
    if release.entry is not None:
        number = made["marginals_version"] = marginal_registry.next_version(connection)
        parent = row.base_marginals
        marginal_registry.add_marginals(connection, number, release.entry, parent=parent, **of_round)
    if release.stored is not None:
        teacher, parent = release.teacher_version, row.base_model
        if release.teacher is not None:
            teacher = f"{row.id}-teacher-{release.teacher.sha256[:8]}"
            before = model_registry.find_model(connection, parent).teacher or parent
            note = f"teacher after round {row.number}"
            model_registry.add_model(connection, teacher, release.teacher, parent=before, note=note, **own)
        version = made["model_version"] = f"{row.id}-{release.stored.sha256[:8]}"
        of_model = of_round | {"optimizer_sha256": release.optimizer_sha256, "teacher": teacher}
        model_registry.add_model(connection, version, release.stored, parent=parent, **of_model)
    if made:
        connection.execute(update(rounds).where(rounds.c.id == row.id).values(made))
    told = ("stream", "inputs_sha256", "reports", "mechanism", "words", "variance")
    connection.execute(
        insert(releases).values(
            **{name: getattr(release, name) for name in told},
            counts=release.counts.astype("<i8").tobytes() if release.counts is not None else None,
            round_id=row.id,
            model_version=made.get("model_version"),
            drawn_at=now,
        )
    )


def _sum(
    blobs: BlobStore,
    settings: RoundSettings,
    plan: DeltaPlan,
    contributions: Sequence[Row[Any]],
    shapes: Mapping[str, tuple[int, ...]],
    workers: Workers,
    grid: Grid | None,
) -> deltas.DeltaSum:
    """The reports' deltas, added up by weight, in steps of the grid where there is one; a robust average, which gets no
    noise, counts as what so many equal devices would have sent. Raises StateError where a stored report is not what was
    accepted."""
    accepted = [
        Accepted(row.blob, row.body_sha256, weight)
        for row, weight in zip(contributions, report_weights(settings, contributions), strict=True)
    ]
    if settings.averaging != "mean":
        sent = (read_accepted(blobs, report, plan) for report in accepted)
        average = robust.cosine_mean(sent, shapes, settings.trimmed)
        total = deltas.add(deltas.init(shapes), average, float(len(accepted)))
        return replace(deltas.fold(total), reports=len(accepted))
    return merge_all(workers.fold(leaves(accepted, shapes, plan, grid)), shapes, grid)


def _masked_sum(
    plan: DeltaPlan, aggregate: NDArray[np.int64] | None, devices: int, shapes: Mapping[str, tuple[int, ...]], seed: str
) -> deltas.DeltaSum:
    """The sum of so many devices' deltas, of that of their integers. StateError: that is of other values."""
    found, expected = 0 if aggregate is None else aggregate.size, sum(map(math.prod, shapes.values()))
    if aggregate is None or found != expected:
        raise StateError(f"deltas: found a sum of {found} values, expected {expected}, as the round's part has")
    return deltas.DeltaSum(parted(summed(aggregate, plan, seed), shapes), float(devices), devices)


def _noise_of(settings: RoundSettings, plan: DeltaPlan) -> dict[str, Any]:
    """Which noise is in a sum of deltas, and whom one has to trust for it."""
    if plan.trust == "distributed":
        steps = {"bits": plan.bits, "minimum_survivors": plan.minimum_survivors}
        return {"name": "discrete_gaussian" if settings.noisy else "none", "trust": "distributed", **steps}
    trust = "central" if settings.noise_multiplier else "share" if settings.noisy else "none"
    return {"name": "gaussian" if settings.noisy else "none", "trust": trust}


def _grid(settings: RoundSettings, plan: DeltaPlan, shapes: Mapping[str, tuple[int, ...]]) -> Grid | None:
    """Of a sum with noise, so that it is exact: the server's noise is of whole steps; with the devices' own, steps are
    so small that ten million of the largest deltas add up in 60 bits. None where there is no noise."""
    if plan.trust == "distributed":
        return None
    if settings.noise_multiplier:
        return noise_grid(plan.clip_norm, settings.noise_multiplier)
    if plan.noise_stddev:
        return Grid(norm_bound(plan, sum(math.prod(shape) for shape in shapes.values())) * 2.0**-36)
    return None


def _checked(key: ReleaseKey | None, inputs_sha256: str) -> ReleaseKey:
    if key is None or key.inputs_sha256 != inputs_sha256:
        raise PrivacyError("key: found none of these reports; noise is drawn from a key that was stored for them")
    return key


def _apply(
    blobs: BlobStore, settings: RoundSettings, base: Row[Any], weights: Weights, mean: Weights
) -> tuple[dict[str, NDArray[np.float32]], optimizers.OptimizerState]:
    """(weights after the server optimizer's step, its state), going on from the state that made the base."""
    state = optimizers.init(settings.optimizer, {name: array.shape for name, array in mean.items()})
    if base.optimizer_sha256 is not None:
        content = blobs.get(model_registry.blob_name(base.optimizer_sha256))
        state = optimizers.state_from_arrays(parse_weights(content), read_metadata(content))
    with np.errstate(over="ignore", invalid="ignore"):  # looked for right below
        updated, state = optimizers.apply(settings.optimizer, state, weights, mean)
    if not all(np.isfinite(values).all() for values in updated.values()):
        raise LearningError("the server optimizer diverged; lower its learning rate")
    return updated, state


def _follow(
    blobs: BlobStore, settings: RoundSettings, lineage: Lineage, weights: Weights, updated: Weights
) -> tuple[model_registry.StoredModel | None, str | None]:
    """(a new teacher, None), or (None, version of the one that stays), or neither where the round keeps no teacher."""
    if settings.teacher is None:
        return None, None
    row = lineage.teacher or lineage.base
    teacher = weights if row.sha256 == lineage.base.sha256 else model_registry.load(blobs, row.sha256)
    plan = settings.teacher
    followed = TeacherSettings(decay=plan.decay, interval=plan.interval)
    # Constants of the weights, which no round moves, stay.
    after = teachers.follow(teacher, updated, lineage.models + 1, followed) if plan.decay < 1 else teacher
    if after is teacher:
        return None, str(row.version)
    return model_registry.store(blobs, after, {"parent": row.version}), None
