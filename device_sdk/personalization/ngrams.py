"""The user's n-grams as bytes, for devices whose app allows an order of words on the disk."""

from __future__ import annotations

import json
import math

from device_sdk.errors import StateError
from rescoring.ngrams import BEGIN, Ngram, NgramCounts
from rescoring.words import WordList

__all__ = ["from_bytes", "to_bytes"]

FORMAT = 1
_BEGIN_WORD = "<s>"


def to_bytes(counts: NgramCounts, words: WordList) -> bytes:
    """JSON by words, sorted; unlisted ones are all ``<unk>``. ``from_bytes`` reads it back."""
    texts = {
        " ".join(_BEGIN_WORD if word == BEGIN else words[word] for word in ngram): weight / counts.unit
        for ngram, weight in counts.ngrams.items()
    }
    return json.dumps({"format": FORMAT, "ngrams": dict(sorted(texts.items()))}).encode()


def from_bytes(data: bytes, words: WordList) -> NgramCounts:
    """Read stored n-grams; words that left the list are unlisted. Raises StateError for damaged bytes."""
    try:
        content = json.loads(data)
        if content["format"] != FORMAT:
            raise ValueError
        found = [(str(text).split(), float(weight)) for text, weight in content["ngrams"].items()]
        if not all(len(said) >= 2 and math.isfinite(weight) and weight >= 0 for said, weight in found):
            raise ValueError
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise StateError(  # without what the error says: it may quote a word
            f"n-grams: the stored bytes cannot be read ({type(error).__name__}), expected those of format {FORMAT}; "
            "delete the state folder to start afresh"
        ) from None
    ngrams: dict[Ngram, float] = {}
    contexts: dict[Ngram, float] = {}
    for said, weight in found:
        ngram = tuple(BEGIN if word == _BEGIN_WORD else words.id(word) for word in said)
        for table, key in ((ngrams, ngram), (contexts, ngram[:-1])):
            table[key] = table.get(key, 0.0) + weight
    return NgramCounts(ngrams, contexts)
