"""What a bundle's CTC head says of given texts: exact sums over their alignments (Graves et al. 2006, eq. 6 to 8).

The transducer knows which pieces came before, and little speech teaches it to rely on that. A CTC head knows nothing
that was said before, and hears phones, not spelling, which little speech teaches best. T: encoder frames; C: phones,
with blank; N: hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from device_sdk.bundle.bundle import Tokenizer
from device_sdk.bundle.pronunciation import Pronunciation
from device_sdk.decoding.forward import BLANK, Double, Float
from device_sdk.hypothesis import Hypothesis

IMPOSSIBLE = -1e5
"""Nats, in place of an infinity, which would not leave a sum again."""
_LEAST = 1e-300


def with_ctc(
    hypotheses: Sequence[Hypothesis], log_probs: Float, tokenizer: Tokenizer, pronunciation: Pronunciation
) -> tuple[Hypothesis, ...]:
    """The same hypotheses, each with the CTC score of what was heard. log_probs: [T, C], nats, of the utterance."""
    scores = log_likelihoods(log_probs, [pronunciation.encode(tokenizer.decode(each.tokens)) for each in hypotheses])
    return tuple(
        replace(each, scores=replace(each.scores, ctc=float(score)))
        for each, score in zip(hypotheses, scores, strict=True)
    )


def log_likelihoods(log_probs: Float, hypotheses: Sequence[Sequence[int]]) -> Double:
    """log p(phones | audio) over all alignments, nats -> float64 [N]. log_probs: [T, C], of a frame's phones by
    themselves. hypotheses: N sequences of phones without blank. One that no alignment has room for is all but
    impossible. The sums are taken frame by frame, of all hypotheses at once, each scaled by its likeliest state."""
    frames, lengths = len(log_probs), np.array([len(each) for each in hypotheses])
    if not frames or not len(lengths):
        return np.where(lengths > 0, IMPOSSIBLE, 0.0)
    states = np.zeros((len(lengths), 2 * int(lengths.max()) + 1), np.int64)  # blank before and after every phone
    for row, phones in enumerate(hypotheses):
        states[row, 1 : 2 * len(phones) : 2] = phones
    own = np.arange(states.shape[1]) <= 2 * lengths[:, None]
    skips = (states[:, 2:] != BLANK) & (states[:, 2:] != states[:, :-2])
    probabilities = np.exp(log_probs.astype(np.float64))
    alpha, logs = np.zeros(states.shape), np.zeros(len(lengths))
    alpha[:, 0] = 1.0
    for frame, given in enumerate(probabilities):
        entered = alpha.copy()
        entered[:, 1:] += alpha[:, :-1]
        if frame:  # before the first one there is a state that is no blank yet
            entered[:, 2:] += alpha[:, :-2] * skips
        alpha = entered * given[states] * own
        scale = alpha.max(1)
        scale[scale == 0.0] = _LEAST
        logs += np.log(scale)
        alpha /= scale[:, None]
    last = np.take_along_axis(alpha, 2 * lengths[:, None], 1)[:, 0]
    before = np.take_along_axis(alpha, np.maximum(2 * lengths - 1, 0)[:, None], 1)[:, 0] * (lengths > 0)
    ended: Double = np.log(np.maximum(last + before, _LEAST)) + logs
    return np.maximum(ended, IMPOSSIBLE)
