"""Words outside the public list that the user gave: what may be named, where the user agrees to help the list grow.

A word is given with a correction, or with another recognizer's transcript; what the device itself heard is not. Kept is
in how many utterances each was given since the last report, and nothing of the order or the company it came in."""

import json
from collections.abc import Mapping, Set

from device_sdk.checks import reading
from device_sdk.feedback.signals import Alternate, Corrected, Signal, parts
from device_sdk.wire.words import is_word
from rescoring.words import WordList

LIMIT = 1000
"""Distinct words that a device keeps for this; beyond it the rarest are forgotten."""


def given_words(signal: Signal, words: WordList) -> frozenset[str]:
    """What may become a word of the list, and is none yet, in the correction, or else in another's transcript."""
    for kind in (Corrected, Alternate):
        for each in parts(signal):
            if isinstance(each, kind):
                return frozenset(word for word in each.text.split() if word not in words and is_word(word))
    return frozenset()


def recount(given: Mapping[str, int], before: Set[str], after: Set[str]) -> dict[str, int]:
    """The counts once an utterance gives other words than it did before."""
    counts = dict(given)
    for word in before - after:
        counts[word] = counts.get(word, 0) - 1
    for word in after - before:
        counts[word] = counts.get(word, 0) + 1
    return commonest(counts)


def commonest(counts: Mapping[str, int]) -> dict[str, int]:
    """As many of them as a device keeps, those given most first, and none that is not given."""
    kept = sorted((word for word in counts if counts[word] > 0), key=lambda word: (-counts[word], word))[:LIMIT]
    return {word: counts[word] for word in kept}


def to_bytes(given: Mapping[str, int]) -> bytes:
    """JSON for encrypted storage, sorted: not in the order given."""
    return json.dumps(dict(sorted(given.items()))).encode()


def from_bytes(content: bytes | None, words: WordList) -> dict[str, int]:
    """What was stored, without what has joined the public list since. StateError: unreadable."""
    with reading("counts/given"):
        counts = {} if content is None else json.loads(content)
        if not all(isinstance(count, int) and count > 0 and is_word(word) for word, count in counts.items()):
            raise ValueError
    return {word: count for word, count in counts.items() if word not in words}
