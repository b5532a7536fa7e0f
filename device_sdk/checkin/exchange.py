"""One check-in from a device's side: send what waits, ask what is new, report what was learned, fetch what is newer.

Order matters. Reports are written to the outbox in the transaction that takes their content off the device's books, and
only then sent; whatever happens on the way, the next check-in repeats the same bytes and the server counts them once.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.checkin.client import Client
from device_sdk.checkin.identity import Identity
from device_sdk.checkin.refusals import UNKNOWN, Refused
from device_sdk.errors import CheckInError, StateError
from device_sdk.learning.delta import Measures, bound
from device_sdk.learning.step import Arrays
from device_sdk.personalization.cache import MarginalCache, reported
from device_sdk.privacy.contributions import bounded_counts, unbounded_counts
from device_sdk.privacy.local import locally_noised
from device_sdk.state import Store, records
from device_sdk.state import reported_counts as history
from device_sdk.state.outbox import Outgoing, keep, one_by_one, release
from device_sdk.wire.delta_codec import encode
from device_sdk.wire.messages import (
    DeltaHeader,
    DeltaPlan,
    MarginalPlan,
    MarginalReport,
    Marginals,
    RoundOffer,
)

__all__ = [
    "CheckInReport",
    "Sent",
    "decode_marginals",
    "delta_report",
    "enqueue_delta",
    "enqueue_marginals",
    "flush",
    "has_reported",
    "held",
    "is_final",
    "remember",
    "restored",
]

_ROUNDS_REMEMBERED = 64
_GONE = frozenset({400, 403, 404, 409, 410, 413, 422})
"""Statuses that no repetition can turn into a receipt: the round is over, or this report will never be taken."""
_NOT_FINAL = frozenset({"replayed", "disconnected", UNKNOWN})
"""Codes with such a status that speak of the request, not of the report, or were not the server's own words: a proxy's
404 does not say that the report was not counted."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One report that left the device. kind: the stream; duplicate: the server had it already; refused: why it was not
    taken, else None. Its content is back on the device's books then, but for counts under secure aggregation once the
    server may have their sum."""

    report_id: str
    round_id: str
    kind: str
    size: int
    duplicate: bool = False
    refused: str | None = None


@dataclass(frozen=True, slots=True)
class CheckInReport:
    """What a check-in did. round_id: the open round, if any. model_version, marginals_version: now on the device;
    new_model, new_marginals: whether this check-in brought them. bytes_up, bytes_down: bodies, without headers.
    due_in_seconds: when the server wants the device back. teacher_version: of the server's teacher that labels here,
    None where the teacher is the device's own. left_out: why streams that the user shares and the round asks for are
    not part of it. updates_refused: what the server offers and the app's trusted root does not vouch for, by name, and
    why; what the device had stays."""

    round_id: str | None
    model_version: str
    new_model: bool
    marginals_version: int
    new_marginals: bool
    sent: tuple[Sent, ...]
    bytes_up: int
    bytes_down: int
    due_in_seconds: float
    teacher_version: str | None = None
    left_out: tuple[str, ...] = ()
    updates_refused: tuple[str, ...] = ()


def flush(client: Client, store: Store, identity: Identity, take_back: Callable[[Outgoing], None]) -> tuple[Sent, ...]:
    """Sends every waiting report, oldest first.

    A receipt takes a report out and counts it as sent, in one transaction. What the server finally refuses goes to
    ``take_back``, which takes it out and puts its content back on the device's books, in one transaction too.
    CheckInError: the server cannot be reached, or something else answered; what was not acknowledged stays.
    """
    sent: list[Sent] = []
    for outgoing in one_by_one(store, identity.server):
        size = len(outgoing.body)
        try:
            receipt = client.report(identity, outgoing)
        except Refused as error:
            if not is_final(error):
                raise
            take_back(outgoing)
            sent.append(Sent(outgoing.report_id, outgoing.round_id, outgoing.kind, size, refused=str(error)))
            continue
        with store.transaction():
            release(store, outgoing.report_id)
            counter = f"{outgoing.kind}_sent"
            records.write_number(store, counter, records.read_number(store, counter) + 1)
        sent.append(Sent(outgoing.report_id, outgoing.round_id, outgoing.kind, size, receipt.duplicate))
    return tuple(sent)


def is_final(error: Refused) -> bool:
    """Whether the server itself said that it will never take what was sent."""
    return error.status in _GONE and error.code not in _NOT_FINAL


def has_reported(store: Store, identity: Identity, round_id: str, kind: str) -> bool:
    """Whether this device already made its one report of that stream for the server's round."""
    return [identity.server, round_id, kind] in _ledger(store)


def enqueue_marginals(
    store: Store, identity: Identity, offer: RoundOffer, plan: MarginalPlan, cache: MarginalCache
) -> MarginalCache:
    """Puts the bounded counts of the utterances not reported yet into the outbox, or in mode ``paper`` every count that
    was ever due; returns the cache without what is reported.

    Call inside a transaction that also stores the cache returned. The round is marked as reported even where nothing
    is left to say. Under ``local`` trust noise is sent all the same, and no number of utterances: whether and how much
    was said is the user's, too.
    """
    remember(store, identity, offer.round_id, "marginals")
    utterances = cache.pending_utterances
    if plan.mode == "paper":
        counts = unbounded_counts(history.add(store, cache.words_digest, cache.pending))
    else:
        counts = bounded_counts(cache.pending, plan)
    if plan.trust == "local":
        counts, utterances = locally_noised(counts, len(cache.pending), plan), 0
    elif not counts:
        return cache
    report_id = secrets.token_hex(16)
    report = MarginalReport(
        report_id=report_id,
        device_id=identity.device_id or "",
        round_id=offer.round_id,
        words_digest=cache.words_digest,
        utterances=utterances,
        counts=counts,
    )
    body = report.model_dump_json().encode()
    keep(store, Outgoing(report_id, identity.server, "marginals", offer.round_id, body, held(cache, plan)))
    return reported(cache)


def held(cache: MarginalCache, plan: MarginalPlan) -> bytes:
    """What a report takes off the books, for :func:`restored`."""
    content = {
        "words_digest": cache.words_digest,
        "utterances": cache.pending_utterances,
        "pending": {str(word): float(cache.pending[word]) for word in np.flatnonzero(cache.pending)},
        "mode": plan.mode,
    }
    return json.dumps(content).encode()


def restored(store: Store, cache: MarginalCache, outgoing: Outgoing) -> MarginalCache:
    """The cache with the counts of a refused report pending again; unchanged where the word list is another one. Call
    inside a transaction that also stores it."""
    taken = json.loads(outgoing.restore)
    if taken["words_digest"] != cache.words_digest:
        return cache
    refused = np.zeros_like(cache.pending)
    for word, weight in taken["pending"].items():
        refused[int(word)] = weight
    if taken.get("mode") == "paper":
        history.add(store, cache.words_digest, -refused)
    return replace(
        cache,
        pending=np.minimum(cache.pending + refused, cache.counts),
        pending_utterances=cache.pending_utterances + int(taken["utterances"]),
    )


def enqueue_delta(
    store: Store,
    identity: Identity,
    offer: RoundOffer,
    plan: DeltaPlan,
    delta: Arrays,
    utterances: int,
    measures: Measures = Measures(),
) -> None:
    """Puts a delta of the plan's kind, clipped, noised and encoded as the plan says, into the outbox, with what the
    plan asks of ``measures``. What is random in it is drawn once: a repeat sends the same bytes. Call inside a
    transaction."""
    report_id = secrets.token_hex(16)
    header = DeltaHeader(
        report_id=report_id,
        device_id=identity.device_id or "",
        round_id=offer.round_id,
        model_version=offer.model_version,
        utterances=utterances,
        kind=plan.kind,
        encoding=plan.encoding,
        scale_per=plan.scale_per,
        loss=measures.mean_loss if plan.measure == "loss" else None,
        word_error=measures.word_error if plan.measure == "word_error" else None,
    )
    body = delta_report(header, plan, delta)
    keep(store, Outgoing(report_id, identity.server, "deltas", offer.round_id, body))
    remember(store, identity, offer.round_id, "deltas")


def delta_report(header: DeltaHeader, plan: DeltaPlan, delta: Arrays) -> bytes:
    """The body of a delta report: safetensors of the delta, bounded, noised and then encoded as the plan says; the
    header as its metadata."""
    from safetensors.numpy import save

    tensors = encode(bound(delta, plan)[0], plan.encoding, plan.scale_per)
    return save({name: tensors[name] for name in sorted(tensors)}, metadata={"header": header.model_dump_json()})


def decode_marginals(message: Marginals, words_digest: str, count: int) -> npt.NDArray[np.float64]:
    """The global distribution, float64 [count]. CheckInError: of another word list or size, or no distribution."""
    where = f"marginals version {message.marginals_version}"
    if message.words_digest != words_digest:
        raise CheckInError(f"{where}: words_digest: found {message.words_digest}, expected {words_digest}")
    try:
        content = base64.b64decode(message.probabilities, validate=True)
    except ValueError as error:
        raise CheckInError(f"{where}: probabilities: not base64 ({error})") from error
    if len(content) != 8 * count:
        raise CheckInError(f"{where}: probabilities: found {len(content)} bytes, expected {8 * count}")
    values = np.frombuffer(content, "<f8").astype(np.float64)
    if not np.all(np.isfinite(values)) or values.min() < 0 or abs(float(values.sum()) - 1.0) > 1e-6:
        raise CheckInError(f"{where}: probabilities: expected non-negative values that sum to 1")
    return values


def _ledger(store: Store) -> list[list[str]]:
    content = store.get("settings", "reported")
    try:
        return [] if content is None else [list(entry) for entry in json.loads(content)]
    except (ValueError, TypeError) as error:
        raise StateError(f"settings/reported: found an unreadable list ({error})") from error


def remember(store: Store, identity: Identity, round_id: str, kind: str) -> None:
    """Marks a stream of a round as reported: this device answers once."""
    entries = [*_ledger(store), [identity.server, round_id, kind]][-_ROUNDS_REMEMBERED:]
    store.put("settings", "reported", json.dumps(entries).encode())
