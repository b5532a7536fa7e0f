"""Another language than English: espeak-ng's voices of it say given sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from device_sdk.errors import DataError
from device_sdk.features.logmel import logmel
from server.lab.corpora.acoustics import GENTLE, apply_scene, draw_scene
from server.lab.corpora.voices import Voice, VoiceSet, draw_voice, speak
from server.lab.training.data import Example

__all__ = ["language_examples", "language_voices", "split_sentences"]

_WATCHED: dict[VoiceSet, str] = {"devices": "made.development", "heldout": "made.heldout"}


def language_voices(language: str, voice_set: VoiceSet, count: int, seed: int) -> tuple[Voice, ...]:
    """Voices of a set whose accent is a language of espeak-ng (``fr``, ``es``, ``fr-be``, ...). Raises DataError where
    it has none of that name."""
    generator = np.random.default_rng([seed, *voice_set.encode(), *language.encode()])
    voices = tuple(replace(draw_voice(voice_set, generator), accent=language) for _ in range(count))
    try:
        speak("a", voices[0])
    except DataError as error:
        raise DataError(f"language: found {language!r}, expected one that espeak-ng speaks, like fr") from error
    return voices


def split_sentences(sentences: Sequence[str], watched: int) -> tuple[list[str], list[str]]:
    """Sentences to train on, and at most ``watched`` others, a tenth of all at most."""
    count = min(watched, len(sentences) // 10)
    chosen = set(np.random.default_rng(0).permutation(len(sentences))[:count].tolist())
    kept = [sentence for number, sentence in enumerate(sentences) if number not in chosen]
    return kept, [sentences[number] for number in sorted(chosen)]


def language_examples(language: str, sentences: Sequence[str]) -> list[Example]:
    """Each sentence by a speaker who chooses between weights, and by one who only checks; neither is trained on."""
    found = []
    for voice_set, source in _WATCHED.items():
        voices = language_voices(language, voice_set, 10, seed=11)
        for number, sentence in enumerate(sentences):
            generator = np.random.default_rng([11, number])
            waveform = speak(sentence, voices[number % len(voices)])
            waveform = apply_scene(waveform, draw_scene(generator, GENTLE), generator)
            found.append(Example(logmel(waveform), sentence, source))
    return found
