"""Exact log-likelihoods of given token sequences, forward only: what a beam did not find is scored like this.

The candidates of one utterance share most of their beginnings, so the work is done once for every distinct prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.protocol import RecurrentState, Transducer

__all__ = ["log_likelihoods"]

Tokens = tuple[int, ...]
Double = NDArray[np.float64]

_BLANK = 0


def log_likelihoods(
    transducer: Transducer, encoded: NDArray[np.float32], hypotheses: Sequence[Sequence[int]]
) -> Double:
    """log p(tokens | audio) over all alignments, nats -> float64 [N].

    T: encoder frames; J: joiner size; V: pieces; N: hypotheses.
    encoded: [T, J] of the whole utterance, T at least 1. hypotheses: N token sequences without blank.

    alpha(t, u), the forward variable of the transducer (Graves 2012, eq. 16), is for a fixed prefix a first-order
    recurrence in t, solved here for all t at once: with b(t) the blanks summed up to t,
    alpha(t, u) = b(t) + logsumexp over s <= t of (alpha(s, u - 1) + emission(s, u - 1) - b(s)).
    """
    wanted = {tuple(tokens) for tokens in hypotheses}
    found: dict[Tokens, float] = {}
    prefixes: list[Tokens] = [()]
    entering = np.full((1, len(encoded)), -np.inf)
    entering[0, 0] = 0.0
    predicted, state = transducer.predict(np.zeros(1, np.int64))
    while prefixes:
        extended: list[Tokens] = []
        parents: list[int] = []
        columns: list[Double] = []
        for row, prefix in enumerate(prefixes):
            scores = transducer.join(encoded, predicted[row : row + 1]).astype(np.float64)
            blanks = np.concatenate(([0.0], np.cumsum(scores[:, _BLANK])))
            alpha = blanks[:-1] + np.logaddexp.accumulate(entering[row] - blanks[:-1])
            if prefix in wanted:
                found[prefix] = float(alpha[-1] + scores[-1, _BLANK])
            size = len(prefix)
            for token in sorted({tokens[size] for tokens in wanted if len(tokens) > size and tokens[:size] == prefix}):
                extended.append((*prefix, token))
                parents.append(row)
                columns.append(alpha + scores[:, token])
        prefixes = extended
        if prefixes:
            entering = np.stack(columns)
            chosen = RecurrentState(state.h[:, parents], state.c[:, parents])
            predicted, state = transducer.predict(np.array([prefix[-1] for prefix in prefixes], np.int64), chosen)
    return np.array([found[tuple(tokens)] for tokens in hypotheses])
