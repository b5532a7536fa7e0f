"""Exact likelihoods of given texts: the forward variable of the transducer (Graves 2012, eq. 16) over all alignments,
whatever a search kept of them. T: encoder frames; J: joiner size; V: pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.protocol import Transducer

Float = NDArray[np.float32]
Double = NDArray[np.float64]
Tokens = tuple[int, ...]

BLANK = 0


def entrance(frames: int) -> Double:
    """Where every path begins, [T]: at the first frame."""
    entering = np.full(frames, -np.inf)
    entering[0] = 0.0
    return entering


def forward(entering: Double, scores: Double) -> Double:
    """alpha(t, u) of one prefix, [T]. entering: alpha(t, u - 1) + emission(t, u - 1), [T]. scores: [T, V], what the
    joiner says after the prefix. For a fixed prefix alpha is a first-order recurrence in t, solved here for all t at
    once: with b(t) the blanks summed up to t, alpha(t, u) = b(t) + logsumexp over s <= t of (entering(s) - b(s))."""
    blanks = np.concatenate(([0.0], np.cumsum(scores[:-1, BLANK])))
    alpha: Double = blanks + np.logaddexp.accumulate(entering - blanks)
    return alpha


def log_likelihoods(transducer: Transducer, encoded: Float, hypotheses: Sequence[Sequence[int]]) -> Double:
    """log p(tokens | audio) over all alignments, nats -> float64 [N]. N: hypotheses. encoded: [T, J] of the whole
    utterance, T at least 1. hypotheses: N token sequences without blank; prefixes that they share are walked once."""
    wanted = {tuple(tokens) for tokens in hypotheses}
    found: dict[Tokens, float] = {}
    prefixes: list[Tokens] = [()]
    entering = entrance(len(encoded))[None]
    predicted, state = transducer.predict(np.zeros(1, np.int64))
    while prefixes:
        extended, parents, columns = list[Tokens](), list[int](), list[Double]()
        for row, prefix in enumerate(prefixes):
            scores = transducer.join(encoded, predicted[row : row + 1]).astype(np.float64)
            alpha = forward(entering[row], scores)
            if prefix in wanted:
                found[prefix] = float(alpha[-1] + scores[-1, BLANK])
            size = len(prefix)
            for token in sorted({tokens[size] for tokens in wanted if len(tokens) > size and tokens[:size] == prefix}):
                extended.append((*prefix, token))
                parents.append(row)
                columns.append(alpha + scores[:, token])
        prefixes = extended
        if prefixes:
            entering = np.stack(columns)
            chosen = tuple(each[:, parents] for each in state)
            predicted, state = transducer.predict(np.array([prefix[-1] for prefix in prefixes], np.int64), chosen)
    return np.array([found[tuple(tokens)] for tokens in hypotheses])
