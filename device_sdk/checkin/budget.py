"""What a device has spent of its user's privacy: kept with the state, over restarts, servers and erasures."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from device_sdk.checks import reading
from device_sdk.errors import StateError
from device_sdk.privacy.spending import Plan, Spent, cost_of, stream_of

if TYPE_CHECKING:
    from device_sdk.privacy.bounds import OfferBounds
    from device_sdk.state import Store

TABLE, NAME = "settings", "spent"


def refusal(store: Store, bounds: OfferBounds, plan: Plan) -> str | None:
    """Why a report by this plan is not made, by name, with what was found and what is allowed; None where it may be."""
    return bounds.refusal(plan, read(store)[stream_of(plan)])


def charge(store: Store, bounds: OfferBounds, plan: Plan) -> None:
    """Counts a report by this plan as made, inside the transaction that makes it, whatever comes of it."""
    spent, stream = read(store), stream_of(plan)
    _write(store, spent | {stream: spent[stream].plus(cost_of(plan, bounds.cohort))})


def refund(store: Store, bounds: OfferBounds, plan: Plan) -> None:
    """Takes back what a report of which nothing was sent was charged, inside the transaction that ends that."""
    spent, stream = read(store), stream_of(plan)
    _write(store, spent | {stream: spent[stream].without(cost_of(plan, bounds.cohort))})


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
    with reading(f"{TABLE}/{NAME}"):
        held = json.loads(content)
        return spent | {stream: Spent.read(held[stream]) for stream in spent}


def _write(store: Store, spent: dict[str, Spent]) -> None:
    store.put(TABLE, NAME, json.dumps({stream: asdict(each) for stream, each in spent.items()}).encode())
