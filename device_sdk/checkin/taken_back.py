"""Reports that a round ended without: what they took off the device's books is put back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.checkin import exchange
from device_sdk.checkin import word_report as naming
from device_sdk.state import outbox
from device_sdk.state.outbox import Outgoing

if TYPE_CHECKING:
    from device_sdk.model_state import ModelState

__all__ = ["take_back"]


def take_back(model_state: ModelState, outgoing: Outgoing) -> None:
    """A report that a round ended without: its counts, or words, are due again in the next one."""
    with model_state.together():
        outbox.release(model_state.store, outgoing.report_id)
        if outgoing.kind == "marginals" and model_state.consent.marginals:
            model_state.keep_cache(exchange.restored(model_state.store, model_state.cache, outgoing))
        if outgoing.kind == "words" and model_state.consent.words:
            model_state.keep_given(naming.restored(model_state.given, outgoing, model_state.base.words))
