"""All counts that went into reports, where rounds ask for every count so far (mode ``paper``).

Kept by word id for one word list; a report over another list begins anew. Gone when the user agrees no longer.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import StateError
from device_sdk.state import Store

__all__ = ["add", "clear", "read"]

TABLE, NAME = "counts", "reported"


def read(store: Store, words_digest: str, size: int) -> NDArray[np.float64]:
    """What was reported so far -> float64 [size]; zeros for another word list. StateError: unreadable."""
    counts = np.zeros(size)
    content = store.get(TABLE, NAME)
    if content is None:
        return counts
    try:
        held = json.loads(content)
        if held["words_digest"] == words_digest:
            for word, weight in held["counts"].items():
                counts[int(word)] = float(weight)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise StateError(
            f"{TABLE}/{NAME}: cannot be read ({type(error).__name__}); delete the state folder to start afresh"
        ) from None
    if not np.isfinite(counts).all() or (size and counts.min() < 0):
        raise StateError(f"{TABLE}/{NAME}: found a weight that is negative or not finite")
    return counts


def add(store: Store, words_digest: str, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The counts so far with these, which may be negative to take a refused report back; stored. Call it inside the
    transaction that writes the report."""
    total = np.maximum(read(store, words_digest, counts.size) + counts, 0.0)
    held = {str(word): float(total[word]) for word in np.flatnonzero(total)}
    store.put(TABLE, NAME, json.dumps({"words_digest": words_digest, "counts": held}).encode())
    return total


def clear(store: Store) -> None:
    """Forgets them."""
    if store.get(TABLE, NAME) is not None:
        store.delete(TABLE, NAME)
