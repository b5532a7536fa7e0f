"""What a device has spent of its user's privacy: kept with the state, over restarts, servers and erasures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from device_sdk.errors import StateError
from device_sdk.privacy.spending import Spent, delta_cost, marginal_cost, word_cost
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan

if TYPE_CHECKING:
    from device_sdk.privacy.bounds import OfferBounds
    from device_sdk.state import Store

__all__ = ["Plan", "charge", "read", "records_kept", "refund", "refusal"]

TABLE, NAME = "settings", "spent"
Plan = MarginalPlan | DeltaPlan | WordPlan


def refusal(store: Store, bounds: OfferBounds, plan: Plan) -> str | None:
    """Why a report by this plan is not made, by name, with what was found and what is allowed; None where it may be."""
    spent = read(store)
    if isinstance(plan, MarginalPlan):
        return bounds.against_marginals(plan, spent["marginals"])
    if isinstance(plan, DeltaPlan):
        return bounds.against_deltas(plan, spent["deltas"])
    return bounds.against_words(plan, spent["words"])


def charge(store: Store, bounds: OfferBounds, plan: Plan) -> None:
    """Counts a report by this plan as made. Call it inside the transaction that makes it: what comes of the report is
    not asked, since whoever it was sent to may have it."""
    spent = read(store)
    if isinstance(plan, MarginalPlan):
        spent["marginals"] = spent["marginals"].plus(marginal_cost(plan))
    elif isinstance(plan, DeltaPlan):
        spent["deltas"] = spent["deltas"].plus(delta_cost(plan, bounds.cohort))
    else:
        spent["words"] = spent["words"].plus(word_cost(plan))
    _write(store, spent)


def refund(store: Store, plan: MarginalPlan) -> None:
    """Takes back what was charged for counts of which nothing was sent. Call it inside the transaction that ends
    that."""
    spent = read(store)
    spent["marginals"] = spent["marginals"].without(marginal_cost(plan))
    _write(store, spent)


def records_kept(store: Store) -> list[tuple[str, str]]:
    """What an erasure leaves: this, unless it cannot be read, which must not keep anybody from forgetting."""
    try:
        return [(TABLE, NAME)] if any(each != Spent() for each in read(store).values()) else []
    except StateError:
        return []


def read(store: Store) -> dict[str, Spent]:
    """By stream. StateError: unreadable; no report is made then."""
    content = store.get(TABLE, NAME)
    spent = dict.fromkeys(("marginals", "deltas", "words"), Spent())
    if content is None:
        return spent
    try:
        held = json.loads(content)
        return spent | {stream: Spent.read(held[stream]) for stream in spent}
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{TABLE}/{NAME}: cannot be read ({type(error).__name__}); delete the state folder to start afresh"
        ) from None


def _write(store: Store, spent: dict[str, Spent]) -> None:
    store.put(TABLE, NAME, json.dumps({stream: each.fields() for stream, each in spent.items()}).encode())
