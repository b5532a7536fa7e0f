"""Development speech unlike what the base model was trained on, without touching the voices kept for checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from device_sdk.errors import ConfigurationError
from server.lab.corpora.acoustics import change_speed
from server.lab.corpora.utterance import Corpus, Utterance, Waveform

__all__ = ["at_speeds"]


def at_speeds(corpus: Corpus, factors: Sequence[float]) -> Corpus:
    """Every speaker's utterances, in order, at each speed: one speaker a factor, pitch and formants moved with it.

    Weights chosen only on the voices a model was trained on would trust it too much. A factor beyond the range of the
    training's own changes makes those voices strange to it. Raises ConfigurationError for no factor or an extreme one.
    """
    if not factors or not all(0.5 <= factor <= 2.0 for factor in factors):
        raise ConfigurationError(f"speeds: found {list(factors)}, expected one or more factors from 0.5 to 2")
    changed = [_changed(utterance, factor) for factor in factors for utterance in corpus.utterances]
    return Corpus(corpus.name, tuple(changed), corpus.lexicon)


def _changed(utterance: Utterance, factor: float) -> Utterance:
    if factor == 1.0:
        return utterance
    name = f"x{factor:g}"
    return replace(
        utterance,
        id=f"{utterance.id}-{name}",
        speaker=f"{utterance.speaker}-{name}",
        audio=partial(_load, utterance, factor),
    )


def _load(utterance: Utterance, factor: float) -> Waveform:
    return change_speed(utterance.load(), factor)
