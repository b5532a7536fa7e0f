"""A transducer with a random table of its own for every (frame, prefix), and the search over all of its alignments."""

import itertools
from collections import defaultdict

import numpy as np

from device_sdk.decoding.beam import advance, start


class RandomLattice:
    """Log-probabilities that depend on the frame and on the whole prefix, so that a wrong state cannot go unseen.
    encoded [K, 1] holds the frame's number, predicted [B, 1] the prefix's."""

    architecture = None

    def __init__(self, seed: int, pieces: int, sharpness: float = 1.0, blank_bias: float = 0.0) -> None:
        self.seed, self.pieces, self.sharpness, self.blank_bias = seed, pieces, sharpness, blank_bias
        self.ids: dict[tuple[int, ...], int] = {(): 0}
        self.prefixes: list[tuple[int, ...]] = [()]
        self.predicted: list[tuple[int, ...]] = []
        self.tables: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        self.calls = 0

    def predict(self, tokens, state):
        self.calls += 1
        if state is None:
            assert tokens.tolist() == [0]
            rows = [()]
        else:
            rows = [(*self.prefixes[int(h)], int(token)) for h, token in zip(state[0][0, :, 0], tokens, strict=True)]
        self.predicted += rows
        for row in rows:
            if row not in self.ids:
                self.ids[row] = len(self.prefixes)
                self.prefixes.append(row)
        numbers = np.array([self.ids[row] for row in rows], np.float32)
        return numbers[:, None], (numbers[None, :, None], -numbers[None, :, None])

    def join(self, encoded, predicted):
        rows = np.broadcast(encoded[..., 0], predicted[..., 0])
        found = [self.log_probs(int(frame), self.prefixes[int(number)]) for frame, number in rows]
        return np.stack(found).reshape(*rows.shape, self.pieces)

    def log_probs(self, frame: int, prefix: tuple[int, ...]) -> np.ndarray:
        known = self.tables.get((frame, prefix))
        if known is not None:
            return known
        logits = np.random.default_rng([self.seed, frame, *prefix]).normal(size=self.pieces) * self.sharpness
        logits[0] += self.blank_bias
        table = self.tables[frame, prefix] = (logits - np.logaddexp.reduce(logits)).astype(np.float32)
        return table


def search(lattice, count, decoding, cuts=(), guide=None, function=advance):
    """The beam after ``count`` frames, searched in blocks that end at ``cuts``."""
    beam = start(lattice, guide)
    for begin, end in itertools.pairwise(sorted({0, count, *(min(cut, count) for cut in cuts)})):
        beam = function(beam, frames(count)[begin:end], lattice, decoding)
    return beam


def frames(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)[:, None]


def exhaustive(lattice: RandomLattice, count: int, symbols: int) -> dict[tuple[int, ...], tuple[float, list[int]]]:
    """All prefixes: (log of the sum over alignments of at most ``symbols`` tokens a frame, 0: one in the place of its
    blank, best alignment's frames)."""
    alignments: dict[tuple[int, ...], list[tuple[float, list[int]]]] = defaultdict(list)

    def walk(frame: int, emitted: int, prefix: tuple[int, ...], score: float, times: list[int]) -> None:
        if frame == count:
            alignments[prefix].append((score, times))
            return
        scores = lattice.log_probs(frame, prefix).astype(np.float64)
        walk(frame + 1, 0, prefix, score + scores[0], times)
        if emitted < max(1, symbols):
            for token in range(1, lattice.pieces):
                walk(
                    frame + (not symbols),
                    emitted + bool(symbols),
                    (*prefix, token),
                    score + scores[token],
                    [*times, frame],
                )

    walk(0, 0, (), 0.0, [])
    return {
        prefix: (float(np.logaddexp.reduce([score for score, _ in found])), max(found)[1])
        for prefix, found in alignments.items()
    }
