"""What a method is judged by: word errors on the new domain, on the old one, and where words have become frequent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.rao_2023.speech import Clip
from server.lab.evaluation.scores import word_errors

__all__ = ["Errors", "errors", "newly_frequent", "says_any"]

Ngram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Errors:
    """wrong, words: int64 [N] of every test clip; persons: whose they are."""

    wrong: NDArray[np.int64]
    words: NDArray[np.int64]
    persons: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Word error rate, micro-averaged; NaN for no clips."""
        return float(self.wrong.sum() / self.words.sum()) if self.words.sum() else float("nan")

    def where(self, chosen: Sequence[bool]) -> Errors:
        """Of the chosen clips only."""
        index = np.flatnonzero(np.asarray(chosen, bool))
        return Errors(self.wrong[index], self.words[index], tuple(self.persons[i] for i in index))


def errors(clips: Sequence[Clip], texts: Sequence[str]) -> Errors:
    """Word errors of each hypothesis [N] against its clip [N]."""
    pairs = list(zip(clips, texts, strict=True))
    return Errors(
        np.array([word_errors(clip.sentence.text, text) for clip, text in pairs], np.int64),
        np.array([len(clip.sentence.text.split()) for clip, _ in pairs], np.int64),
        tuple(clip.person for clip, _ in pairs),
    )


def newly_frequent(
    before: Iterable[str], now: Iterable[str], factor: float = 5.0, longest: int = 3, least: int = 3
) -> frozenset[Ngram]:
    """n-grams of one to ``longest`` words that are at least ``factor`` times as frequent now as before (Rao et al.
    2023's *Delta* test sets, section 3).

    Frequency is the share among n-grams of the same length; what was never said before counts as said half a time.
    least: times that an n-gram must have been said now, below which its frequency means little.
    """
    old, new = _counts(before, longest), _counts(now, longest)
    found: set[Ngram] = set()
    for order in range(1, longest + 1):
        all_old, all_new = max(1, old[order].total()), max(1, new[order].total())
        for ngram, count in new[order].items():
            if count >= least and count / all_new >= factor * max(old[order][ngram], 0.5) / all_old:
                found.add(ngram)
    return frozenset(found)


def says_any(text: str, ngrams: frozenset[Ngram], longest: int = 3) -> bool:
    """Whether a text holds one of the n-grams."""
    words = text.split()
    return any(
        tuple(words[start : start + order]) in ngrams
        for order in range(1, longest + 1)
        for start in range(len(words) - order + 1)
    )


def _counts(texts: Iterable[str], longest: int) -> dict[int, Counter[Ngram]]:
    counts: dict[int, Counter[Ngram]] = {order: Counter() for order in range(1, longest + 1)}
    for text in texts:
        words = text.split()
        for order, counter in counts.items():
            counter.update(tuple(words[start : start + order]) for start in range(len(words) - order + 1))
    return counts
