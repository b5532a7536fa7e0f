"""Small n-best lists for tests: words of a topic come back, and half of the entries have them wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.liu_2020.lists import Client, NBest
from rescoring.words import WordList

WORDS = WordList(("<unk>", *(a + b + c for a in "bdgk" for b in "aeiou" for c in "lmnr")))


def background() -> NDArray[np.float64]:
    """A background that falls with the word's number."""
    weights = 1 / np.arange(1, len(WORDS) + 1)
    return np.asarray(weights / weights.sum())


def client(name: str, seed: int, utterances: int = 24, entries: int = 5) -> Client:
    """A client whose lists hold what was said and entries with one word replaced."""
    generator = np.random.default_rng(seed)
    topic = [str(word) for word in generator.choice(WORDS.words[1:], 6, replace=False)]
    found = []
    for number in range(utterances):
        said = [str(word) for word in generator.choice([*topic, "unheardof"], 4)]
        texts = [" ".join(said)]
        while len(texts) < entries:
            other = list(said)
            other[generator.integers(4)] = str(generator.choice(WORDS.words[1:]))
            if " ".join(other) not in texts:
                texts.append(" ".join(other))
        order = generator.permutation(entries)
        acoustic = np.sort(generator.normal(-5.0, 1.5, entries))[::-1]
        neural, ngram = generator.normal(-12.0, 1.0, (2, entries))
        found.append(
            NBest(
                speaker=f"speaker {number % 2}",
                texts=tuple(texts[place] for place in order),
                acoustic=tuple(acoustic.round(3).tolist()),
                errors=tuple(int(place != 0) for place in order),
                words=4,
                neural=tuple(neural.round(3).tolist()),
                ngram=tuple(ngram.round(3).tolist()),
            )
        )
    return Client(name, tuple(found))
