"""Reports of a device, from its books into the outbox, to the server and, where a round ends without them, back.

Order matters. A report is written to the outbox in the transaction that takes its content off the device's books, and
only then sent; whatever happens on the way, the next check-in repeats the same bytes and the server counts them once.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.checkin import budget
from device_sdk.checkin.connection import UNKNOWN, Refused
from device_sdk.checks import reading
from device_sdk.learning.delta import Measures, bound
from device_sdk.personalization.cache import MarginalCache, reported
from device_sdk.personalization.given import commonest, to_bytes
from device_sdk.privacy.contributions import bounded_counts, locally_noised, reported_words, unbounded_counts
from device_sdk.privacy.spending import Plan, stream_of
from device_sdk.sent import Sent
from device_sdk.state import records
from device_sdk.state.outbox import Kind, Outgoing, keep, release, waiting
from device_sdk.wire.delta_codec import encode
from device_sdk.wire.messages import DeltaHeader, DeltaPlan, MarginalPlan, MarginalReport, WordPlan, WordReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from device_sdk.checkin.client import Client
    from device_sdk.checkin.identity import Identity
    from device_sdk.learning.step import Arrays
    from device_sdk.model_state import ModelState
    from device_sdk.privacy.bounds import OfferBounds
    from device_sdk.state import Store
    from device_sdk.wire.messages import RoundOffer
    from rescoring.words import WordList

_ROUNDS_REMEMBERED = 64
_GONE = frozenset({400, 403, 404, 409, 410, 413, 422})
"""Statuses that no repetition can turn into a receipt: the round is over, or this report will never be taken."""
_NOT_FINAL = frozenset({"replayed", "disconnected", UNKNOWN})
"""Codes with such a status that speak of the request, not of the report, or were not the server's own words: a proxy's
404 does not say that the report was not counted."""


def flush(client: Client, store: Store, who: Identity, take_back: Callable[[Outgoing], None], sent: list[Sent]) -> None:
    """Sends every waiting report, oldest first, and adds it to ``sent`` once its outcome is known. A receipt takes a
    report out and counts it as sent, in one transaction. What the server finally refuses goes to ``take_back``, which
    takes it out and puts its content back on the books, in one transaction too. CheckInError: the server was not
    reached, or something else answered; the rest stays."""
    for outgoing in waiting(store, who.server):
        done = Sent(outgoing.report_id, outgoing.round_id, outgoing.kind, len(outgoing.body))
        try:
            done = replace(done, duplicate=client.report(who, outgoing).duplicate)
        except Refused as error:
            if not is_final(error):
                raise
            take_back(outgoing)
            done = replace(done, refused=str(error))
        else:
            with store.transaction():
                release(store, outgoing.report_id)
                count_sent(store, outgoing.kind)
        sent.append(done)


def count_sent(store: Store, kind: Kind) -> None:
    """One more report of a stream has been taken."""
    records.write_number(store, f"{kind}_sent", records.read_number(store, f"{kind}_sent") + 1)


def is_final(error: Refused) -> bool:
    """Whether the server itself said that it will never take what was sent."""
    return error.status in _GONE and error.code not in _NOT_FINAL


def has_reported(store: Store, who: Identity, round_id: str, kind: Kind) -> bool:
    """Whether this device already made its one report of that stream for the server's round."""
    return [who.server, round_id, kind] in _read_rounds(store)


def remember(store: Store, who: Identity, round_id: str, kind: Kind) -> None:
    """Marks a stream of a round as reported: this device answers once."""
    entries = [*_read_rounds(store), [who.server, round_id, kind]][-_ROUNDS_REMEMBERED:]
    store.put("settings", "reported", json.dumps(entries).encode())


def _read_rounds(store: Store) -> list[list[str]]:
    content = store.get("settings", "reported")
    with reading("settings/reported"):
        return [] if content is None else [list(entry) for entry in json.loads(content)]


# Each of these is called inside a transaction, which also takes what the report holds off the books.


def enqueue_marginals(
    store: Store,
    who: Identity,
    offer: RoundOffer,
    plan: MarginalPlan,
    bounds: OfferBounds,
    cache: MarginalCache,
    background: NDArray[np.float64],
) -> MarginalCache:
    """Puts the bounded counts of the utterances not reported yet into the outbox, or in mode ``paper`` every count that
    was ever due; returns the cache without what is reported, to be stored. The round is marked as reported even where
    nothing is left to say. Under ``local`` trust noise is sent all the same, without the number of utterances."""
    utterances = cache.pending_utterances
    if plan.mode == "paper":
        counts = unbounded_counts(records.add_reported(store, cache.words_digest, cache.pending))
    else:
        counts = bounded_counts(cache.pending, background, plan)
    if plan.trust == "local":
        counts, utterances = locally_noised(counts, len(cache.pending), plan), 0
    elif not counts:
        remember(store, who, offer.round_id, "marginals")
        return cache
    named = _named(who, offer)
    report = MarginalReport(**named, words_digest=cache.words_digest, utterances=utterances, counts=counts)
    _enqueue(store, who, plan, bounds, report, taken_counts(cache, plan))
    return reported(cache)


def enqueue_words(
    who: Identity, offer: RoundOffer, plan: WordPlan, bounds: OfferBounds, model_state: ModelState, most: int
) -> None:
    """Puts the words given most since the last report into the outbox, and takes all off the books: like an utterance's
    counts, what it gave is reported once. most: the device's own bound on their number, beside the plan's. Where there
    is no word yet the round is not marked as reported: words come seldom."""
    if words := reported_words(model_state.given, min(plan.max_words, most)):
        digest = model_state.base.words.digest
        report = WordReport(**_named(who, offer), words_digest=digest, words=tuple(sorted(words)))
        _enqueue(model_state.store, who, plan, bounds, report, to_bytes(model_state.given))
    model_state.keep_given({})


def enqueue_delta(
    store: Store,
    who: Identity,
    offer: RoundOffer,
    plan: DeltaPlan,
    bounds: OfferBounds,
    delta: Arrays,
    utterances: int,
    measures: Measures = Measures(),
) -> None:
    """Puts a delta of the plan's kind, clipped, noised and encoded as the plan says, into the outbox, with what the
    plan asks of ``measures``. What is random in it is drawn once: a repeat sends the same bytes."""
    header = DeltaHeader(
        **_named(who, offer),
        model_version=offer.model_version,
        utterances=utterances,
        kind=plan.kind,
        encoding=plan.encoding,
        scale_per=plan.scale_per,
        loss=measures.mean_loss if plan.measure == "loss" else None,
        word_error=measures.word_error if plan.measure == "word_error" else None,
    )
    _enqueue(store, who, plan, bounds, header, body=delta_report(header, plan, delta))


def delta_report(header: DeltaHeader, plan: DeltaPlan, delta: Arrays) -> bytes:
    """The body of a delta report: safetensors, bounded, noised, encoded as the plan says; the header as metadata."""
    from safetensors.numpy import save

    tensors = encode(bound(delta, plan)[0], plan.encoding, plan.scale_per)
    return save({name: tensors[name] for name in sorted(tensors)}, metadata={"header": header.model_dump_json()})


def _named(who: Identity, offer: RoundOffer) -> dict[str, Any]:
    return {"report_id": secrets.token_hex(16), "device_id": who.device_id or "", "round_id": offer.round_id}


def _enqueue(
    store: Store,
    who: Identity,
    plan: Plan,
    bounds: OfferBounds,
    report: MarginalReport | WordReport | DeltaHeader,
    restore: bytes = b"",
    body: bytes | None = None,
) -> None:
    """body: what is sent, the report's own JSON if None."""
    stream = stream_of(plan)
    remember(store, who, report.round_id, stream)
    budget.charge(store, bounds, plan)
    body = body or report.model_dump_json().encode()
    keep(store, Outgoing(report.report_id, who.server, stream, report.round_id, body, restore))


def taken_counts(cache: MarginalCache, plan: MarginalPlan) -> bytes:
    """What a report takes off the books, for :func:`restored_counts`."""
    content = {
        "words_digest": cache.words_digest,
        "utterances": cache.pending_utterances,
        "pending": {str(word): float(cache.pending[word]) for word in np.flatnonzero(cache.pending)},
        "mode": plan.mode,
    }
    return json.dumps(content).encode()


def take_back(model_state: ModelState, outgoing: Outgoing) -> None:
    """Of a report that a round ended without, counts or words are due again, where the user still agrees to it."""
    with model_state.together():
        release(model_state.store, outgoing.report_id)
        if outgoing.kind == "marginals" and model_state.consent.marginals:
            model_state.keep_cache(restored_counts(model_state.store, model_state.cache, outgoing))
        if outgoing.kind == "words" and model_state.consent.words:
            model_state.keep_given(restored_words(model_state.given, outgoing, model_state.base.words))


def restored_counts(store: Store, cache: MarginalCache, outgoing: Outgoing) -> MarginalCache:
    """The cache with a refused report's counts pending again, if of this word list; to be stored in one transaction."""
    taken = json.loads(outgoing.restore)
    if taken["words_digest"] != cache.words_digest:
        return cache
    pending = np.zeros_like(cache.pending)
    for word, weight in taken["pending"].items():
        pending[int(word)] = weight
    if taken["mode"] == "paper":
        records.add_reported(store, cache.words_digest, -pending)
    utterances = cache.pending_utterances + int(taken["utterances"])
    return replace(cache, pending=np.minimum(cache.pending + pending, cache.counts), pending_utterances=utterances)


def restored_words(given: Mapping[str, int], outgoing: Outgoing, words: WordList) -> dict[str, int]:
    """What is given, with what a refused report took off the books, as far as it is outside the list still."""
    counts = dict(given)
    for word, count in json.loads(outgoing.restore).items():
        if word not in words:
            counts[word] = counts.get(word, 0) + int(count)
    return commonest(counts)
