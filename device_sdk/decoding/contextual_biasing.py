"""What a search follows besides the transducer: hotwords and an n-gram, piece by piece, a few steps for every extension
it weighs.

Both depend on the tokens alone: every prefix has one bonus, whatever its alignments. N: states of the hotwords'
automaton; C: characters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.bundle import WORD_START, Tokenizer
from device_sdk.bundle.piece_ngram import START, PieceNgram
from device_sdk.runtimes.native_kernels import native_module

Sums = NDArray[np.float64]

_native: Any = native_module()


class Guided(NamedTuple):
    """What a guide knows of one prefix. bonus: nats that its rank in the search gains; hotwords that are not complete
    yet count in part. phrase: the hotword automaton's state; hotword: nats earned by complete ones. context: the
    n-gram's state; language: nats that it gives."""

    bonus: float
    phrase: int = 0
    hotword: float = 0.0
    context: int = 0
    language: float = 0.0


UNGUIDED = Guided(0.0)


class Ngram:
    """An n-gram over pieces with its weight in a search. Immutable."""

    __slots__ = ("_backoff", "_first", "_following", "_nats", "_pieces", "_shorter", "each", "native", "weight")

    def __init__(self, ngram: PieceNgram, weight: float, each: float) -> None:
        """weight: of its log-probabilities; each: nats for every piece, without which longer texts would lose."""
        # Plain numbers come out of a memoryview several times quicker than out of an array.
        self._first: Any = ngram.first.data
        self._pieces: Any = ngram.pieces.data
        self._nats: Any = ngram.nats.data
        self._following: Any = ngram.following.data
        self._backoff: Any = ngram.backoff.data
        self._shorter: Any = ngram.shorter.data
        self.weight = weight
        self.each = each
        # As native code takes it.
        self.native: Any = (weight, each, ngram.first, ngram.pieces, ngram.nats, ngram.backoff, ngram.shorter)

    def read(self, context: int, piece: int) -> tuple[int, float]:
        """(the context after one more piece, what the search gains by it in nats)"""
        nats = 0.0
        while context:
            low: int = self._first[context]
            high: int = self._first[context + 1]
            while low < high:
                middle = (low + high) >> 1
                found: int = self._pieces[middle]
                if found < piece:
                    low = middle + 1
                elif found > piece:
                    high = middle
                else:
                    return self._found(middle, nats)
            backoff: float = self._backoff[context]
            nats += backoff
            shorter: int = self._shorter[context]
            context = shorter
        return self._found(piece, nats)

    def ahead(self, context: int, pieces: list[int]) -> list[float]:
        """What the search would gain by each of some pieces, nats."""
        if _native is not None:
            gained: list[float] = _native.ahead(context, pieces, *self.native)
            return gained
        return [self.read(context, piece)[1] for piece in pieces]

    def _found(self, arc: int, nats: float) -> tuple[int, float]:
        following: int = self._following[arc]
        known: float = self._nats[arc]
        return following, self.weight * (nats + known) + self.each


class Guide:
    """Follows hotwords and an n-gram in the texts of prefixes. Immutable: sessions share one."""

    __slots__ = ("_hotwords", "_ngram")

    def __init__(self, hotwords: HotwordAutomaton | None, ngram: Ngram | None = None) -> None:
        self._hotwords = hotwords
        self._ngram = ngram

    def start(self) -> Guided:
        """Of the empty prefix."""
        hotwords, context = self._hotwords, 0 if self._ngram is None else START
        if hotwords is None:
            return Guided(0.0, context=context)
        return Guided(hotwords.account(hotwords.start), hotwords.start, context=context)

    def gain(self, guided: Guided) -> float:
        """At least the most that one more token adds to the bonus of a prefix, nats."""
        nats = 0.0 if self._hotwords is None else self._hotwords.gain(guided.phrase)
        if self._ngram is not None:
            nats += max(0.0, self._ngram.each)
        return nats

    @property
    def alone(self) -> Ngram | None:
        """The n-gram, where there is nothing else."""
        return self._ngram if self._hotwords is None else None

    def ahead(self, guided: Guided, tokens: list[int]) -> list[float]:
        """What each of some tokens would add to the bonus of a prefix."""
        hotwords, ngram = self._hotwords, self._ngram
        changes = [0.0] * len(tokens) if hotwords is None else hotwords.ahead(guided.phrase, tokens)
        if ngram is not None:
            gained = ngram.ahead(guided.context, tokens)
            for at in range(len(tokens)):
                changes[at] += gained[at]
        return changes

    def step(self, guided: Guided, token: int) -> Guided:
        """Of a prefix with one more token."""
        phrase, hotword, context, language, account = 0, 0.0, 0, 0.0, 0.0
        if self._hotwords is not None:
            phrase, earned = self._hotwords.read(guided.phrase, token)
            hotword, account = guided.hotword + earned, self._hotwords.account(phrase)
        if self._ngram is not None:
            context, gained = self._ngram.read(guided.context, token)
            language = guided.language + gained
        return Guided(hotword + account + language, phrase, hotword, context, language)

    def whole(self, guided: Guided) -> float:
        """What the hotwords of a prefix earn that is the whole text, nats: none counts in part; the last word ends."""
        return guided.hotword if self._hotwords is None else guided.hotword + self._hotwords.last(guided.phrase)


class HotwordAutomaton:
    """The hotwords that a text is inside of, character by character. Immutable."""

    __slots__ = ("_advance", "_boundary", "_gain", "_next", "_pieces", "_whole", "_width", "start")

    def __init__(
        self,
        following: NDArray[np.int32],
        whole: Sums,
        advance: Sums,
        codes: dict[str, int],
        start: int,
        tokenizer: Tokenizer,
    ) -> None:
        """following: [N, C] the state after a character; whole: [N] what the phrases that end here earn at a word's
        end; advance: [N] what a text that goes on gets on account: of the phrases it is inside of, the largest boost by
        the share of its letters that were read; codes: character -> column; start: the state of the empty text, which
        begins a word; in nats."""
        self._boundary, self._width = codes[WORD_START], len(codes)
        pieces = [tokenizer.piece(token) for token in range(tokenizer.size)]
        # -1: a character of no phrase
        self._pieces: list[list[int]] = [[codes.get(character, -1) for character in piece] for piece in pieces]
        self._next: Any = following.reshape(-1).data
        self._whole: Any = whole.data
        self._advance: Any = advance.data
        self.start = start
        self._gain: Any = self._gains(following, whole, advance, pieces).data

    def account(self, state: int) -> float:
        """What a text in a state gets for phrases that are not complete yet, nats."""
        nats: float = self._advance[state]
        return nats

    def gain(self, state: int) -> float:
        """At least the most that one more token adds, nats."""
        nats: float = self._gain[state]
        return nats

    def ahead(self, before: int, tokens: list[int]) -> list[float]:
        """What each of some tokens would add, nats."""
        changes = [0.0] * len(tokens)
        account: float = self._advance[before]
        for at, token in enumerate(tokens):
            state, earned = self.read(before, token)
            changes[at] = earned + self._advance[state] - account
        return changes

    def last(self, state: int) -> float:
        """What the phrases earn that end where the text does, nats."""
        nats: float = self._whole[state]
        return nats

    def read(self, state: int, token: int) -> tuple[int, float]:
        """(the state after one more piece, the boosts that it completed in nats)"""
        earned, boundary, width = 0.0, self._boundary, self._width
        for code in self._pieces[token]:
            if code == boundary:
                earned += self._whole[state]
            following: int = self._next[state * width + code] if code >= 0 else 0
            state = following
        return state, earned

    def _gains(self, following: NDArray[np.int32], whole: Sums, advance: Sums, pieces: list[str]) -> Sums:
        """Bounds of what one piece changes, for each state: [N]. Of pieces inside a word the letters are left open, and
        of those that go on with a phrase at a word start; the others, most of all, are read."""
        if any(WORD_START in piece[1:] for piece in pieces[1:]):
            return np.full(len(advance), advance.max() + whole.max())
        inside = max([len(piece) for piece in pieces[1:] if piece[0] != WORD_START], default=0)
        begins = max([len(piece) - 1 for piece in pieces[1:] if piece[0] == WORD_START], default=0)
        letters = [code for code in range(self._width) if code != self._boundary]
        reached, within, after = advance, advance, advance
        for length in range(1, max(inside, begins) + 1):
            for best in [reached[following[:, code]] for code in letters]:
                reached = np.maximum(reached, best)
            within = reached if length <= inside else within
            after = reached if length <= begins else after
        begun = max([advance.item(self.read(self.start, token)[0]) for token in range(1, len(pieces))])
        words = following[:, self._boundary]
        bounds = np.where(words == self.start, begun, after[words]) + whole
        return np.maximum(np.maximum(bounds, within) - advance, 0.0)
