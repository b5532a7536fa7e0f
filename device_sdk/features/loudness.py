"""How loud a speaker is beside the room, and since when nobody speaks: a pure function of the frames."""

from __future__ import annotations

from collections.abc import Sequence
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
    """The level of every ``step`` frames, nats: the log of their energy in the lower half of the mel bins, where voices
    are loud and most noise is not. frames: [F, M] log-mel, F a multiple of ``step``."""
    energies = np.exp(frames[:, : max(1, frames.shape[1] // 2)])
    steps = energies.reshape(len(frames) // step, step * energies.shape[1])
    found: list[float] = np.log(np.add.reduce(steps, axis=1)).tolist()
    return found


def heard(before: Loudness, found: Sequence[float], seconds: float) -> tuple[Loudness, list[float]]:
    """After steps of ``seconds`` of these levels, nats; and how long it was quiet after each of them."""
    room, speaker, quiet, quiets = before.room, before.speaker, before.quiet, []
    rise, fall = _RISE * seconds, _FALL * seconds
    for level in found:  # comparisons, since calls of min and max would take as long as all else
        spoke = speaker - room >= _LEAST_CONTRAST
        room = level if level < room + rise else room + rise
        speaker = level if level > speaker - fall else speaker - fall
        if spoke and speaker < room + _LEAST_CONTRAST:
            speaker = room + _LEAST_CONTRAST
        contrast = speaker - room
        depth = _QUIET * (contrast if contrast < _MOST_CONTRAST else _MOST_CONTRAST)
        quiet = quiet + seconds if (spoke or contrast >= _LEAST_CONTRAST) and level < speaker - depth else 0.0
        quiets.append(quiet)
    return Loudness(room, speaker, quiet), quiets
