"""What a search follows besides the transducer: hotwords, piece by piece, a few steps for every extension it weighs.

They depend on the tokens alone: every prefix has one bonus, whatever its alignments. N: states of the hotwords'
automaton; C: characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.bundle import WORD_START, Tokenizer

Sums = NDArray[np.float64]


class Guided(NamedTuple):
    """What a guide knows of one prefix. bonus: nats that its rank in the search gains; hotwords that are not complete
    yet count in part. phrase: the automaton's state; hotword: nats earned by complete ones."""

    bonus: float
    phrase: int = 0
    hotword: float = 0.0


UNGUIDED = Guided(0.0)


class Guide:
    """Follows the hotwords in the texts of prefixes. Immutable: sessions share one."""

    __slots__ = ("_advance", "_boundary", "_gain", "_next", "_pieces", "_start", "_whole", "_width")

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
        # Plain numbers come out of a memoryview several times quicker than out of an array.
        self._next: Any = following.reshape(-1).data
        self._whole: Any = whole.data
        self._advance: Any = advance.data
        self._start = start
        self._gain: Any = self._gains(following, whole, advance, pieces).data

    def start(self) -> Guided:
        """Of the empty prefix."""
        bonus: float = self._advance[self._start]
        return Guided(bonus, self._start)

    def gain(self, guided: Guided) -> float:
        """At least the most that one more token adds to the bonus of a prefix, nats."""
        nats: float = self._gain[guided.phrase]
        return nats

    def ahead(self, guided: Guided, tokens: Sequence[int]) -> list[float]:
        """What each of some tokens would add to the bonus of a prefix."""
        changes = [0.0] * len(tokens)
        before: float = self._advance[guided.phrase]
        for at, token in enumerate(tokens):
            state, earned = self._read(guided.phrase, token)
            changes[at] = earned + self._advance[state] - before
        return changes

    def step(self, guided: Guided, token: int) -> Guided:
        """Of a prefix with one more token."""
        phrase, earned = self._read(guided.phrase, token)
        hotword = guided.hotword + earned
        return Guided(hotword + self._advance[phrase], phrase, hotword)

    def whole(self, guided: Guided) -> float:
        """What the hotwords of a prefix earn that is the whole text, nats: none counts in part; the last word ends."""
        last: float = self._whole[guided.phrase]
        return guided.hotword + last

    def _read(self, state: int, token: int) -> tuple[int, float]:
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
        begun = max([advance.item(self._read(self._start, token)[0]) for token in range(1, len(pieces))])
        words = following[:, self._boundary]
        bounds = np.where(words == self.start, begun, after[words]) + whole
        return np.maximum(np.maximum(bounds, within) - advance, 0.0)
