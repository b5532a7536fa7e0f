"""The report of words outside the public list that the user gave: few, each once, without how often or beside what."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping

from device_sdk.checkin.exchange import remember
from device_sdk.checkin.identity import Identity
from device_sdk.personalization.given import commonest, to_bytes
from device_sdk.privacy.new_words import named_words
from device_sdk.state import Store
from device_sdk.state.outbox import Outgoing, keep
from device_sdk.wire.messages import RoundOffer, WordPlan, WordReport
from rescoring.words import WordList

__all__ = ["enqueue_words", "restored"]


def enqueue_words(
    store: Store,
    identity: Identity,
    offer: RoundOffer,
    plan: WordPlan,
    given: Mapping[str, int],
    max_words: int,
    words_digest: str,
) -> bool:
    """Puts the words given most since the last report into the outbox: no more than the plan asks for, nor than
    ``max_words``, the device's own bound.

    Call inside a transaction that also takes all of ``given`` off the books: like an utterance's counts, what it gave
    is reported once. Where there is nothing to name yet the round is not marked as reported: words come seldom. Returns
    whether there is a report.
    """
    named = named_words(given, min(plan.max_words, max_words))
    if not named:
        return False
    remember(store, identity, offer.round_id, "words")
    report_id = secrets.token_hex(16)
    report = WordReport(
        report_id=report_id,
        device_id=identity.device_id or "",
        round_id=offer.round_id,
        words_digest=words_digest,
        words=tuple(sorted(named)),
    )
    body = report.model_dump_json().encode()
    keep(store, Outgoing(report_id, identity.server, "words", offer.round_id, body, to_bytes(given)))
    return True


def restored(given: Mapping[str, int], outgoing: Outgoing, words: WordList) -> dict[str, int]:
    """What is given, with what a refused report took off the books, as far as it is outside the list still."""
    counts = dict(given)
    for word, count in json.loads(outgoing.restore).items():
        if word not in words:
            counts[word] = counts.get(word, 0) + int(count)
    return commonest(counts)
