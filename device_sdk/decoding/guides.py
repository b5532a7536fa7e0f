"""What a search may follow besides the transducer: a bonus for every prefix, made of its tokens alone."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

__all__ = ["Guide", "GuideParts", "Guided"]


class Guided(NamedTuple):
    """What a guide knows of one prefix.

    bonus: nats that its rank in the search gains; while words and phrases are unfinished, partly an advance.
    state: the guide's own.
    """

    bonus: float
    state: Any


class GuideParts(NamedTuple):
    """What a guide says of a finished text. hotword, ngram: nats, before weighting; weighted: what the rank gains."""

    hotword: float
    ngram: float
    weighted: float


class Guide(Protocol):
    """Scores prefixes. It is a pure function of tokens; sessions may share one."""

    @property
    def gain(self) -> float:
        """The most that one more token adds to a bonus: nats, 0 or more."""
        ...

    def start(self) -> Guided:
        """Of the empty prefix."""
        ...

    def step(self, guided: Guided, token: int) -> Guided:
        """Of a prefix with one more token."""
        ...

    def parts(self, guided: Guided) -> GuideParts:
        """Of a prefix that is the whole text: nothing is advanced any more."""
        ...
