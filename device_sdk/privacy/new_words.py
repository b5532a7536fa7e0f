"""Which words outside the public list a device may name, where its user agrees to help the list grow."""

from __future__ import annotations

from collections.abc import Mapping

from device_sdk.errors import PrivacyError
from device_sdk.wire.words import is_word

__all__ = ["named_words"]


def named_words(given: Mapping[str, float], max_words: int) -> frozenset[str]:
    """At most ``max_words`` different words, those given most (equal weights: in alphabetical order), and only what may
    become a word of the list. Their weights are not named.

    given: word -> in how many utterances. Raises PrivacyError.
    """
    if max_words < 1:
        raise PrivacyError(f"max_words: found {max_words}, expected at least 1")
    fit = [word for word, weight in given.items() if weight > 0 and is_word(word)]
    return frozenset(sorted(fit, key=lambda word: (-given[word], word))[:max_words])
