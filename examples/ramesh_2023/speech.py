"""The experiment's speech, by made voices: silos without text, transcribed utterances, test sets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from examples.cohorts import digit_string, keep_speech
from examples.ramesh_2023.recipes import Sizes
from server.lab.corpora.made import Person, draw_people, say
from server.lab.training.clips import Clips, HeldClips
from server.lab.training.data import Example
from server.lab.training.spectra import log_spectra

Language = Literal["en", "fr"]


@dataclass(frozen=True, slots=True)
class Speech:
    """One language. silos: clips without text, speaker after speaker, each in the order of time; owners: how many clips
    each silo has; taught: transcribed clips; tests: by name; their clips' sources are speakers."""

    language: Language
    silos: Clips
    owners: tuple[int, ...]
    taught: Clips
    tests: dict[str, tuple[Example, ...]]


def made_speech(sizes: Sizes, language: Language, folder: Path) -> Speech:
    """Strings of digits by made voices in rooms of their own; made once, kept in ``folder``. Silos, taught speech and
    the test set ``clean`` are by different people with voices of one set, ``other`` by others."""
    people = draw_people("base", sizes.speakers + 40, 1, with_profiles=False)
    others = draw_people("heldout", 20, 1, with_profiles=False)
    silos, teachers, tested = people[: sizes.speakers], people[sizes.speakers :][:20], people[sizes.speakers + 20 :]

    def clips(name: str, whose: Sequence[Person], count: int, seed: int) -> list[Example]:
        path = folder / f"{name}-{language}-{sizes.speakers}-{count}.safetensors"
        every = [(n, person, j) for n, person in enumerate(whose) for j in range(-(-count // len(whose)))]
        return keep_speech(path, lambda: [_clip(person, language, (seed, n, j)) for n, person, j in every])

    return Speech(
        language,
        HeldClips(clips("silos", silos, sizes.speakers * sizes.each, 1)),
        (sizes.each,) * sizes.speakers,
        HeldClips(clips("taught", teachers, sizes.taught, 2)),
        {
            "clean": tuple(clips("clean", tested, sizes.tested, 3)),
            "other": tuple(clips("other", others, sizes.tested, 4)),
        },
    )


def _clip(person: Person, language: Language, seed: tuple[int, ...]) -> Example:
    text = digit_string(np.random.default_rng(list(seed)), language, 4)
    voice = person.voice if language == "en" else replace(person.voice, accent=language)
    return Example(log_spectra(say(text, replace(person, voice=voice), seed)), text, person.name)
