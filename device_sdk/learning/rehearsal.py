"""Rehearsal: transcribed utterances between the user's own, so that what was known before is not forgotten.

Rao et al. 2023 (section 3, table 5) gives historic data to pseudo-devices in the cloud. A device whose app brings
transcribed speech rehearses alone: after every so many utterances that it learned from, one of these takes a turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.audio import check_waveform
from device_sdk.errors import ConfigurationError, LearningError
from device_sdk.features import logmel
from device_sdk.learning.objectives import Objective, label
from device_sdk.learning.settings import RehearsalSettings
from device_sdk.transcripts import in_letters, transcript

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle


@dataclass(frozen=True, slots=True)
class Transcribed:
    """An utterance that may be rehearsed. waveform: [S] float32 in [-1, 1] or int16, mono, at the rate of the bundle's
    features; text: its words, as they were said, see :mod:`device_sdk.transcripts`."""

    waveform: npt.NDArray[np.generic]
    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", transcript(self.text, "transcribed.text", ConfigurationError))


def is_due(utterances: int, settings: RehearsalSettings) -> bool:
    """Whether a rehearsed utterance follows the user's ``utterances``-th, counted from 1."""
    return settings.weight > 0 and utterances > 0 and utterances % settings.every == 0


def rotation(count: int, generator: np.random.Generator) -> Iterator[int]:
    """Which of ``count`` utterances to rehearse next, for ever: all of them in random order, then all of them again."""
    while count:
        yield from generator.permutation(count).tolist()


def lesson(spoken: Transcribed, bundle: Bundle, weight: float = 1.0) -> tuple[npt.NDArray[np.float32], Objective]:
    """(features [F, M], loss) of a transcribed utterance: w = ``weight`` on its transcript. F: frames; M: mel bins.
    AudioError: no waveform. LearningError: it has no frame, or its text no pieces."""
    features = logmel(check_waveform(spoken.waveform, "rehearsal"), bundle.features)
    text = in_letters(spoken.text, bundle.tokenizer.letters, "transcribed.text", LearningError)
    if len(features) < (least := bundle.architecture.subsampling_factor):
        raise LearningError(f"rehearsal.waveform: found {len(features)} frames, expected at least {least}")
    return features, label(bundle.tokenizer.encode(text), weight)
