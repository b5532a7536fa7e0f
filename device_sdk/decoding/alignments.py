"""The alignments of a prefix that a search kept."""

from __future__ import annotations

from math import exp, log1p
from typing import Final

__all__ = ["Alignments", "Aside", "Emission", "merged"]


class Emission:
    """The frame that emitted a token, and what was emitted before it: a linked list that alignments share."""

    __slots__ = ("before", "frame")

    def __init__(self, frame: int, before: Emission | None) -> None:
        self.frame: Final = frame
        self.before: Final = before


class Alignments:
    """The alignments of one prefix.

    score: log of the sum of their probabilities; gap: what the best one lies below it; emissions: of the best one.
    """

    __slots__ = ("emissions", "gap", "score")

    def __init__(self, score: float, gap: float = 0.0, emissions: Emission | None = None) -> None:
        self.score: Final = score
        self.gap: Final = gap
        self.emissions: Final = emissions

    def frames(self) -> tuple[int, ...]:
        """Those that emitted the tokens, in the best alignment."""
        found: list[int] = []
        emission = self.emissions
        while emission is not None:
            found.append(emission.frame)
            emission = emission.before
        found.reverse()
        return tuple(found)


class Aside:
    """A hypothesis that was ``behind`` nats behind the best one, guide and all, after ``since`` frames.

    alignments: after these frames. It is ranked as if it had stayed that far behind.
    """

    __slots__ = ("alignments", "behind", "since")

    def __init__(self, behind: float, since: int, alignments: Alignments) -> None:
        self.behind: Final = behind
        self.since: Final = since
        self.alignments: Final = alignments


def merged(a: Alignments, b: Alignments) -> Alignments:
    """Two sets of alignments of one prefix: probabilities add up, the better of the two best alignments stays."""
    if a.score >= b.score:
        high, low = a.score, b.score
    else:
        high, low = b.score, a.score
    score = high + log1p(exp(low - high))
    best_a, best_b = a.score - a.gap, b.score - b.gap
    if best_a >= best_b:
        return Alignments(score, score - best_a, a.emissions)
    return Alignments(score, score - best_b, b.emissions)
