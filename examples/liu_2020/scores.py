"""n-best lists as arrays, ready to be rescored under any weights: models are asked once, sweeps are arithmetic.

N: hypotheses of an utterance; n: words on the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import DataError
from examples.liu_2020.lists import Client, NBest
from rescoring.combination import CombinationWeights, combine
from rescoring.words import WordList

__all__ = ["Heard", "Listener", "listeners"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance as a device has it after its first pass.

    ids: word ids of each hypothesis, 0 for unlisted words. acoustic, neural, ngram: scores [N], nats. words, unlisted:
    counts [N]. flat, owner: all word ids after one another, and the hypothesis that each is of.
    errors: word errors of each hypothesis, for whoever judges; no device sees them.
    """

    ids: tuple[tuple[int, ...], ...]
    acoustic: Array
    neural: Array
    ngram: Array
    words: Array
    unlisted: Array
    flat: NDArray[np.int64]
    owner: NDArray[np.int64]
    errors: NDArray[np.int64]

    def personal(self, factors: Array) -> Array:
        """What eq. 1 of Liu & Peng 2020 adds to each hypothesis [N]: the sum of its words' factors. factors: [n],
        nats."""
        found: Array = np.bincount(self.owner, factors[self.flat], minlength=len(self.ids)).astype(np.float64)
        return found

    def total(self, weights: CombinationWeights, personal: Array | float = 0.0) -> Array:
        """Scores of the second pass [N]. personal: beside the neural score, nats."""
        scores = combine(
            weights,
            acoustic=self.acoustic,
            words=self.words,
            unlisted=self.unlisted,
            neural=self.neural,
            ngram=self.ngram,
            personal=personal,
        )
        return np.asarray(scores, np.float64)


@dataclass(frozen=True, slots=True)
class Listener:
    """A client with what it heard, in the order of time. said: words that were said in each utterance [U]."""

    name: str
    heard: tuple[Heard, ...]
    said: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.heard)


def listeners(clients: Iterable[Client], words: WordList) -> list[Listener]:
    """Clients over a word list. Raises DataError for lists that no language model has scored."""
    return [
        Listener(client.name, tuple(_heard(nbest, words, client.name) for nbest in client.utterances), client.words)
        for client in clients
    ]


def _heard(nbest: NBest, words: WordList, name: str) -> Heard:
    if nbest.neural is None or nbest.ngram is None:
        raise DataError(f"{name}: n-best lists without scores of language models; run the second pass")
    ids = tuple(tuple(words.ids(text)) for text in nbest.texts)
    return Heard(
        ids=ids,
        acoustic=np.array(nbest.acoustic),
        neural=np.array(nbest.neural),
        ngram=np.array(nbest.ngram),
        words=np.array([len(row) for row in ids], np.float64),
        unlisted=np.array([row.count(0) for row in ids], np.float64),
        flat=np.array([word for row in ids for word in row], np.int64),
        owner=np.repeat(np.arange(len(ids)), [len(row) for row in ids]),
        errors=np.array(nbest.errors, np.int64),
    )
