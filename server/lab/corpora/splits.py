"""Which of some disjoint sets a sentence belongs to: by its text alone, so that no sentence is ever in two of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeVar

__all__ = ["assigned"]

Name = TypeVar("Name", bound=str)


def assigned(text: str, shares: Mapping[Name, float], person: bytes) -> Name:
    """The only set that may use a text: a hash of it, the same on every machine and in every version.

    shares: set -> its share of all texts; they sum to 1. person: tells one assignment from others, at most 16 bytes.
    """
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=person).digest()
    position = int.from_bytes(digest, "big") / 2**64
    bound = 0.0
    for name, share in shares.items():
        bound += share
        if position < bound:
            return name
    return name  # the shares' sum was rounded down
