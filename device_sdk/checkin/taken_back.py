"""Reports that a round ended without: what they took off the device's books is put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.checkin import exchange, naming
from device_sdk.state import outbox
from device_sdk.state.outbox import Outgoing

if TYPE_CHECKING:
    from device_sdk.model_state import Knowledge

__all__ = ["take_back"]


def take_back(knowledge: Knowledge, outgoing: Outgoing) -> None:
    """A report that a round ended without: its counts, or words, are due again in the next one."""
    with knowledge.together():
        outbox.release(knowledge.store, outgoing.report_id)
        if outgoing.kind == "marginals" and knowledge.consent.marginals:
            knowledge.keep_cache(exchange.restored(knowledge.store, knowledge.cache, outgoing))
        if outgoing.kind == "words" and knowledge.consent.words:
            knowledge.keep_given(naming.restored(knowledge.given, outgoing, knowledge.base.words))
