"""Which words outside the public list a device may name, where its user agrees to help the list grow."""

from __future__ import annotations

import re
from collections.abc import Mapping

from device_sdk.errors import PrivacyError

__all__ = ["is_word", "named_words"]

_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’.-]){0,62}")


def is_word(text: str) -> bool:
    """Whether it may become a word of the list: a letter first, no spaces, no longer than 63."""
    return _WORD.fullmatch(text) is not None


def named_words(given: Mapping[str, float], max_words: int) -> frozenset[str]:
    """At most ``max_words`` different words, those given most (equal weights: in alphabetical order), and only what may
    become a word of the list. Their weights are not named.

    given: word -> in how many utterances. Raises PrivacyError.
    """
    if max_words < 1:
        raise PrivacyError(f"max_words: found {max_words}, expected at least 1")
    fit = [word for word, weight in given.items() if weight > 0 and is_word(word)]
    return frozenset(sorted(fit, key=lambda word: (-given[word], word))[:max_words])
