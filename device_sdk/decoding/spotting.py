"""Where in an utterance a phrase may have been said, by what the CTC head heard of each frame.

A path through a phrase's phones begins and ends at any frame, and is as much behind the likeliest phones of its frames
as these are likelier: 0 where the phrase is what the head heard. With b(t) and c(t) the sums, up to frame t, of how
much blank and phone j are behind, the best path that ends in phone j is, for all t at once,

    spoken(t, j) = c(t) + max over s <= t of (entering(s, j) - c(s - 1)), entering(s, 0) = 0
    entering(t + 1, j + 1) = b(t) + max over s <= t of (spoken(s, j) - b(s)),

the latter over s < t where phone j + 1 is phone j again, which a blank must part (Graves et al. 2006). T: encoder
frames; C: phones, and blank 0; P: phrases; R: those that long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import BLANK

Float = NDArray[np.float32]
Double = NDArray[np.float64]
Integers = NDArray[np.int64]


FAR = 2.5
"""Nats for each phone by which a phrase is behind what was heard, from which on it is not looked for."""
MOST = 8
"""Phrases that are looked for in an utterance."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The frames, from ``begin`` to before ``end``, where a phrase is least behind what was heard, by ``score`` nats, 0
    or less; minus infinity where it has no room."""

    score: float
    begin: int
    end: int


def spot(log_probs: Float, phrases: Sequence[Sequence[int]]) -> list[Spot]:
    """The best place of each phrase. log_probs: [T, C], T at least 1. phrases: P sequences of phones, none empty."""
    behind = (log_probs - log_probs.max(1, keepdims=True)).T.astype(np.float64)
    passed = behind.cumsum(1)
    silence, before = passed[BLANK], passed - behind
    lengths = np.array([len(phrase) for phrase in phrases])
    found = [Spot(-np.inf, 0, 0)] * len(phrases)
    rows = np.arange(len(phrases))
    entering = np.zeros((len(phrases), len(log_probs)))
    since = np.broadcast_to(np.arange(len(log_probs)), entering.shape)
    for length, (phones, following) in enumerate(_columns(phrases), 1):
        best, at = _best_so_far(entering - before[phones])
        spoken, since = passed[phones] + best, np.take_along_axis(since, at, 1)
        for row in np.flatnonzero(lengths[rows] == length).tolist():
            end = int(spoken[row].argmax())
            found[rows[row]] = Spot(float(spoken[row, end]), int(since[row, end]), end + 1)
        longer = lengths[rows] > length
        rows, spoken, since = rows[longer], spoken[longer], since[longer]
        again = phones[longer] == following
        best, at = _best_so_far(spoken - silence)
        best[again], at[again] = _shifted(best[again], -np.inf), _shifted(at[again], 0)
        entering, since = _shifted(best + silence, -np.inf), _shifted(np.take_along_axis(since, at, 1), 0)
    return found


def likely(log_probs: Float, phrases: Sequence[Sequence[int]]) -> list[tuple[int, Spot]]:
    """Which phrases may have been said, by their numbers, and where: the :data:`MOST` that are least behind for each
    phone, those that are more than :data:`FAR` behind left out."""
    said = [number for number, phones in enumerate(phrases) if phones]
    if not (said and len(log_probs)):
        return []
    found = zip(said, spot(log_probs, [phrases[number] for number in said]), strict=True)
    near = sorted((-each.score / len(phrases[number]), number, each) for number, each in found)
    return [(number, each) for behind, number, each in near[:MOST] if behind < FAR]


def _columns(phrases: Sequence[Sequence[int]]) -> list[tuple[Integers, Integers]]:
    """For each place in a phrase its phones and those of the next place, of the phrases that reach these."""
    columns = [np.array([phone for phone in column if phone is not None]) for column in zip_longest(*phrases)]
    return list(zip(columns, [*columns[1:], np.zeros(0, np.int64)], strict=True))


def _best_so_far(values: Double) -> tuple[Double, Integers]:
    """The largest value up to each frame, and the frame that it is at, [R, T] both."""
    best: Double = np.maximum.accumulate(values, 1)
    at: Integers = np.maximum.accumulate(np.where(values == best, np.arange(values.shape[1]), 0), 1)
    return best, at


def _shifted(values: NDArray[Any], first: float) -> NDArray[Any]:
    """Those of the frame before, [R, T]."""
    moved = np.roll(values, 1, 1)
    moved[:, 0] = first
    return moved
