"""What a search follows besides the transducer: hotwords.

They depend on the tokens alone: every prefix has one bonus, whatever its alignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.decoding.hotwords import Hotwords

__all__ = ["UNGUIDED", "Guide", "Guided"]


class Guided(NamedTuple):
    """What a guide knows of one prefix.

    bonus: nats that its rank in the search gains; hotwords that are not complete yet count in part.
    phrase: the hotwords' state; hotword: nats earned by complete ones.
    """

    bonus: float
    phrase: int = 0
    hotword: float = 0.0


UNGUIDED = Guided(0.0)


class Guide:
    """Follows the hotwords in the texts of prefixes. Immutable: sessions may share one."""

    __slots__ = ("_tracker",)

    def __init__(self, tokenizer: Tokenizer, hotwords: Hotwords) -> None:
        """Raises :class:`ConfigurationError` for hotwords that the tokenizer cannot spell."""
        self._tracker = hotwords.tracker(tokenizer)

    def start(self) -> Guided:
        """Of the empty prefix."""
        phrase = self._tracker.start
        return Guided(self._tracker.advance(phrase), phrase)

    def gain(self, guided: Guided) -> float:
        """At least the most that one more token adds to the bonus of a prefix, nats."""
        return self._tracker.gain(guided.phrase)

    def ahead(self, guided: Guided, tokens: Sequence[int]) -> list[float]:
        """What each of some tokens would add to the bonus of a prefix."""
        changes = [0.0] * len(tokens)
        before = self._tracker.advance(guided.phrase)
        for at, token in enumerate(tokens):
            state, earned = self._tracker.step(guided.phrase, token)
            changes[at] = earned + self._tracker.advance(state) - before
        return changes

    def step(self, guided: Guided, token: int) -> Guided:
        """Of a prefix with one more token."""
        phrase, earned = self._tracker.step(guided.phrase, token)
        hotword = guided.hotword + earned
        return Guided(hotword + self._tracker.advance(phrase), phrase, hotword)

    def whole(self, guided: Guided) -> float:
        """What the hotwords of a prefix that is the whole text earn, nats: none counts in part any more, and the last
        word ends."""
        return guided.hotword + self._tracker.whole(guided.phrase)
