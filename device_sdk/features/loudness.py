"""How loud a speaker is beside the room, and since when nobody speaks: a pure function of the frames."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

__all__ = ["NOTHING", "Loudness", "heard", "levels"]

_LEAST_CONTRAST = 2.5  # nats between room and speaker; until they differ by as much, nobody has spoken
_MOST_CONTRAST = 8.0  # nats; beside digital silence, every room would be loud
_QUIET = 0.6  # of the contrast, below the speaker
_RISE, _FALL = 0.3, 0.5  # nats a second


@dataclass(frozen=True, slots=True)
class Loudness:
    """What was heard so far.

    room: the quietest level of late, which rises slowly; speaker: the loudest, which falls slowly; both in nats, see
    :func:`levels`. quiet: seconds since the last sound near the speaker's level; 0 until somebody spoke.
    """

    room: float = inf
    speaker: float = -inf
    quiet: float = 0.0


NOTHING = Loudness()


def levels(frames: NDArray[np.float32], step: int) -> list[float]:
    """The level of every ``step`` frames, nats: the log of their mean energy in the lower half of the mel bins, where
    voices are loud and most noise is not. frames: [F, M] log-mel, F a multiple of ``step``."""
    lower = frames[:, : max(1, frames.shape[1] // 2)]
    energies = np.exp(lower).reshape(len(frames) // step, step * lower.shape[1]).mean(axis=1)
    found: list[float] = np.log(energies).tolist()
    return found


def heard(before: Loudness, level: float, seconds: float) -> Loudness:
    """After ``seconds`` more of this level, nats."""
    room = min(level, before.room + _RISE * seconds)
    spoke = before.speaker - before.room >= _LEAST_CONTRAST
    speaker = max(level, before.speaker - _FALL * seconds, room + _LEAST_CONTRAST if spoke else -inf)
    contrast = min(speaker - room, _MOST_CONTRAST)
    quiet = (spoke or contrast >= _LEAST_CONTRAST) and level < speaker - _QUIET * contrast
    return Loudness(room, speaker, before.quiet + seconds if quiet else 0.0)
