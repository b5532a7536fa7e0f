"""Words outside the list: a model of their letters, and the user's own among them.

A language model over the list gives all unlisted words one probability together, p(<unk> | h). Each of them has

    p(w | h) = p(<unk> | h) * s(w),    s(w) = (1 - o) l(w) + o c(w) / C

with l(w) the probability of its letters, c(w) how often the user said it, C how often any unlisted word, and o the
share ``own_words``. So hypotheses with and without such words are compared as one open vocabulary.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["LetterModel", "letter_model", "own_word_gain"]

ORDER = 4
_END = "\n"
_BEGIN = "\t"
_OTHER = "\0"


@dataclass(frozen=True, slots=True)
class LetterModel:
    """A letter n-gram with Witten-Bell interpolation down to equal probabilities of all letters.

    counts: letters before -> letter -> how often. alphabet: the letters it knows, among them the end of a word and one
    that stands for all others.
    """

    order: int
    alphabet: frozenset[str]
    counts: Mapping[str, Mapping[str, int]]
    totals: Mapping[str, int]

    def probability(self, letter: str, before: str) -> float:
        """p(letter | the letters before it in its word); letters that it does not know share one."""
        letter = letter if letter in self.alphabet else _OTHER
        value = 1 / len(self.alphabet)
        for length in range(self.order):
            history = before[len(before) - length :] if length else ""
            if len(history) < length:
                break
            followers = self.counts.get(history)
            if followers is None:
                break
            kinds = len(followers)
            value = (followers.get(letter, 0) + kinds * value) / (self.totals[history] + kinds)
        return value

    def score(self, word: str) -> float:
        """log p(letters of the word, and its end), nats."""
        total, before = 0.0, _BEGIN * (self.order - 1)
        for letter in (*word, _END):
            total += math.log(self.probability(letter, before))
            before = before[1:] + (letter if letter in self.alphabet else _OTHER)
        return total


def letter_model(words: Iterable[str], order: int = ORDER) -> LetterModel:
    """Estimate a model of letters from words, each counted once: new words are spelled like rare ones."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    letters = {_END, _OTHER}
    for word in words:
        letters.update(word)
        said = _BEGIN * (order - 1) + word + _END
        for at in range(order - 1, len(said)):
            for length in range(order):
                counts[said[at - length : at]][said[at]] += 1
    table = {history: dict(followers) for history, followers in counts.items()}
    totals = {history: sum(followers.values()) for history, followers in table.items()}
    return LetterModel(order, frozenset(letters), table, totals)


def own_word_gain(letters: float, weight: float, total: float, share: float) -> float:
    """log(s(w) / l(w)), nats: what having said the word before adds to the letters' score; below 0 where others were.

    letters: log l(w). weight: c(w); total: C; share: o, 0 or more and below 1. Nothing where C is 0.
    """
    if not 0 <= share < 1:
        raise ValueError(f"share: found {share!r}, expected 0 or more and below 1")
    if not total > 0 or share == 0:
        return 0.0
    own = share * min(weight / total, 1.0)
    if own == 0:
        return math.log1p(-share)
    high, low = sorted((math.log(own) - letters, math.log1p(-share)), reverse=True)
    return high + math.log1p(math.exp(low - high))
