"""Hotwords read piece by piece: the automaton's steps, a few of them for every extension that a search weighs.

N: states; C: characters; V: pieces, with blank.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.bundle import WORD_START, Tokenizer

__all__ = ["HotwordTracker"]

Sums = NDArray[np.float64]


class HotwordTracker:
    """The automaton read piece by piece; immutable, threads may share it.

    start: the state of the empty text, which begins a word.
    """

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
        end; advance: [N] what a hypothesis gets on account; codes: character -> column."""
        self._boundary, self._width = codes[WORD_START], len(codes)
        pieces = [tokenizer.piece(token) for token in range(tokenizer.size)]
        # -1: a character of no phrase
        self._pieces: list[list[int]] = [[codes.get(character, -1) for character in piece] for piece in pieces]
        # Plain numbers come out of a memoryview several times quicker than out of an array.
        self._next: Any = following.reshape(-1).data
        self._whole: Any = whole.data
        self._advance: Any = advance.data
        self.start = start
        self._gain: Any = self._gains(following, whole, advance, pieces).data

    def step(self, state: int, token: int) -> tuple[int, float]:
        """(the state after one more piece, the boosts that it completed in nats)"""
        earned, boundary, width = 0.0, self._boundary, self._width
        for code in self._pieces[token]:
            if code == boundary:
                earned += self.whole(state)
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
        begun = max([self.advance(self.step(self.start, token)[0]) for token in range(1, len(pieces))])
        words = following[:, self._boundary]
        bounds = np.where(words == self.start, begun, after[words]) + whole
        return np.maximum(np.maximum(bounds, within) - advance, 0.0)

    def gain(self, state: int) -> float:
        """At least the most that one more piece adds to boosts and what is on account together (nats)."""
        nats: float = self._gain[state]
        return nats

    def advance(self, state: int) -> float:
        """What a text that goes on gets on account (nats): of the phrases it is inside of, the largest boost by the
        share of its letters that were read."""
        nats: float = self._advance[state]
        return nats

    def whole(self, state: int) -> float:
        """What a text that ends here earns last (nats)."""
        nats: float = self._whole[state]
        return nats
