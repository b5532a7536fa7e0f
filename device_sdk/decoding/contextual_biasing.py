"""What a search follows besides the transducer: hotwords, and the n-gram at the ends of words.

Both depend on the tokens alone: every prefix has one bonus, whatever its alignments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from device_sdk.bundle.tokenizer import WORD_START, Tokenizer
from device_sdk.decoding.hotwords import Hotwords

if TYPE_CHECKING:
    from device_sdk.runtimes.ngram import NgramModel

__all__ = ["NOTHING", "UNGUIDED", "Guide", "GuideParts", "Guided"]


class Guided(NamedTuple):
    """What a guide knows of one prefix.

    bonus: nats that its rank in the search gains; hotwords that are not complete yet count in part.
    phrase: the hotwords' state; hotword: nats earned by complete ones.
    history: the n-gram's state after the words that ended; word: letters since; ngram: log p of these words, nats.
    """

    bonus: float
    phrase: int = 0
    hotword: float = 0.0
    history: Any = None
    word: str = ""
    ngram: float = 0.0


UNGUIDED = Guided(0.0)


class GuideParts(NamedTuple):
    """What a guide says of a whole text. hotword, ngram: nats, before weighting; bonus: what its rank gains."""

    hotword: float
    ngram: float
    bonus: float


NOTHING = GuideParts(0.0, 0.0, 0.0)


class Guide:
    """Follows the texts of prefixes. Owns nothing that changes but a cache: sessions may share one."""

    __slots__ = ("_ngram", "_pieces", "_starts", "_tracker", "_weight")

    def __init__(
        self,
        tokenizer: Tokenizer,
        hotwords: Hotwords | None = None,
        ngram: NgramModel | None = None,
        ngram_weight: float = 0.0,
    ) -> None:
        """ngram_weight: of the n-gram's log-probabilities in a rank.

        Raises :class:`ConfigurationError` for hotwords that the tokenizer cannot spell.
        """
        self._tracker = None if hotwords is None or not hotwords.phrases else hotwords.tracker(tokenizer)
        self._ngram, self._weight = (ngram, ngram_weight) if ngram_weight else (None, 0.0)
        read = range(tokenizer.size if self._ngram is not None else 0)  # hotwords have what they need of them
        self._pieces = [tokenizer.piece(token) for token in read]
        self._starts = [piece.startswith(WORD_START) for piece in self._pieces]

    def start(self) -> Guided:
        """Of the empty prefix."""
        bonus, phrase = 0.0, 0
        if self._tracker is not None:
            phrase = self._tracker.start
            bonus = self._tracker.advance(phrase)
        return Guided(bonus, phrase, 0.0, None if self._ngram is None else self._ngram.begin())

    def gain(self, guided: Guided) -> float:
        """At least the most that one more token adds to the bonus of a prefix, nats."""
        return 0.0 if self._tracker is None else self._tracker.gain(guided.phrase)

    def ahead(self, guided: Guided, tokens: Sequence[int]) -> list[float]:
        """What each of some tokens would add to the bonus of a prefix."""
        changes = [0.0] * len(tokens)
        if self._tracker is not None:
            before = self._tracker.advance(guided.phrase)
            for at, token in enumerate(tokens):
                state, earned = self._tracker.step(guided.phrase, token)
                changes[at] = earned + self._tracker.advance(state) - before
        if self._ngram is not None and guided.word:
            loss = self._weight * self._ngram.score(guided.history, guided.word)[0]
            changes = [
                change + loss if self._starts[token] else change for change, token in zip(changes, tokens, strict=True)
            ]
        return changes

    def step(self, guided: Guided, token: int) -> Guided:
        """Of a prefix with one more token."""
        _, phrase, hotword, history, word, ngram = guided
        bonus = 0.0
        if self._tracker is not None:
            phrase, earned = self._tracker.step(phrase, token)
            hotword += earned
            bonus = hotword + self._tracker.advance(phrase)
        if self._ngram is not None:
            *ended, rest = (word + self._pieces[token]).split(WORD_START)
            for each in filter(None, ended):
                score, history = self._ngram.score(history, each)
                ngram += score
            word = rest
            bonus += self._weight * ngram
        return Guided(bonus, phrase, hotword, history, word, ngram)

    def parts(self, guided: Guided) -> GuideParts:
        """Of a prefix that is the whole text: no hotword counts in part any more, and the last word ends."""
        hotword, ngram = guided.hotword, 0.0
        if self._tracker is not None:
            hotword += self._tracker.whole(guided.phrase)
        if self._ngram is not None:
            ngram, history = guided.ngram, guided.history
            if guided.word:
                score, history = self._ngram.score(history, guided.word)
                ngram += score
            ngram += self._ngram.end(history)
        return GuideParts(hotword, ngram, hotword + self._weight * ngram)
