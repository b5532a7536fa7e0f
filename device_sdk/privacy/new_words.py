"""Which words outside the public list a device may name, where its user agrees to help the list grow."""

from __future__ import annotations

import re
from collections.abc import Mapping

from device_sdk.errors import PrivacyError

__all__ = ["WORD", "named_words"]

WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’.-]){0,62}")
"""What may become a word of the list: a letter first, no spaces, no longer than 63."""


def named_words(unlisted: Mapping[str, float], max_words: int) -> frozenset[str]:
    """At most ``max_words`` different words, those heard most (equal weights: in alphabetical order), and only what may
    become a word of the list. Their weights are not named.

    unlisted: word -> weight, as the cache counts them. Nothing in the SDK sends them: an app that has its user's
    consent to do so hands them to the operator, who releases what enough devices named. Raises PrivacyError.
    """
    if max_words < 1:
        raise PrivacyError(f"max_words: found {max_words}, expected at least 1")
    fit = [word for word, weight in unlisted.items() if weight > 0 and WORD.fullmatch(word)]
    return frozenset(sorted(fit, key=lambda word: (-unlisted[word], word))[:max_words])
