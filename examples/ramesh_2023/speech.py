"""The experiment's speech: silos without text, transcribed utterances, test sets; by made voices or from corpora."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from device_sdk.errors import DataError
from examples.cohorts import digit_string, keep_speech
from examples.ramesh_2023.recipes import Sizes
from server.lab.corpora import recipes
from server.lab.corpora.made import Person, draw_people, say
from server.lab.corpora.partitions import Item, speaker_silos
from server.lab.corpora.utterance import Utterance
from server.lab.training.clips import Clips, HeldClips, ReadClips
from server.lab.training.data import Example
from server.lab.training.spectra import log_spectra

Language = Literal["en", "fr"]
Keep = Callable[[str], bool] | None
"""Which speakers; None for all."""


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


def corpora_speech(data: Path, language: Language) -> Speech:
    """The paper's sets below ``data``: ``librilight`` and ``LibriSpeech``, or ``mls``, in their publishers' layouts.
    English silos are Libri-Light's ``large`` part, French ones four fifths of the speakers of MLS' training part, whose
    others are taught (the paper splits its hours at random, 855 and 215). Audio is read when it is needed."""
    if language == "en":
        silos, owners = _silos("librilight", data / "librilight", ["large"], "en")
        taught = _read("librispeech", data / "LibriSpeech", ["train-clean-100", "train-clean-360", "train-other-500"])
        parts = ("dev-clean", "dev-other", "test-clean", "test-other")
        tests = {part: _examples("librispeech", data / "LibriSpeech", part, "en") for part in parts}
        return Speech("en", silos, owners, taught, tests)
    cuts = recipes.manifest("mls", data / "mls", "train", "french")
    chosen = {speaker for speaker in sorted({str(cut.supervisions[0].speaker) for cut in cuts}) if _taught(speaker)}
    silos, owners = _silos("mls", data / "mls", ["train"], "french", lambda speaker: speaker not in chosen)
    taught = _read("mls", data / "mls", ["train"], "french", lambda speaker: speaker in chosen)
    tests = {part: _examples("mls", data / "mls", part, "french") for part in ("dev", "test")}
    return Speech("fr", silos, owners, taught, tests)


def _clip(person: Person, language: Language, seed: tuple[int, ...]) -> Example:
    text = digit_string(np.random.default_rng(list(seed)), language, 4)
    voice = person.voice if language == "en" else replace(person.voice, accent=language)
    return Example(log_spectra(say(text, replace(person, voice=voice), seed)), text, person.name)


def _taught(speaker: str) -> bool:
    return hashlib.blake2b(speaker.encode(), digest_size=1).digest()[0] < 256 // 5


def _cuts(
    kind: recipes.Kind, path: Path, parts: Sequence[str], language: str, keep: Keep = None
) -> tuple[dict[str, tuple[Utterance, float]], list[Item]]:
    """Utterances and their seconds by id, and what partitioners see of them."""
    found: dict[str, tuple[Utterance, float]] = {}
    items = []
    for part in parts:
        cuts = recipes.manifest(kind, path, part, language)
        for utterance, item in zip(recipes.as_corpus(kind, cuts).utterances, recipes.items_of(kind, cuts), strict=True):
            if keep is None or keep(item.speaker):
                found[item.id] = (utterance, item.seconds)
                items.append(item)
    if not items:
        raise DataError(f"{path}: no utterance is left of {kind}, {', '.join(parts)}")
    return found, items


def _silos(
    kind: recipes.Kind, path: Path, parts: Sequence[str], language: str, keep: Keep = None
) -> tuple[Clips, tuple[int, ...]]:
    found, items = _cuts(kind, path, parts, language, keep)
    silos = speaker_silos(items)
    order = [found[name] for own in silos.values() for name in own]
    clips = ReadClips([one for one, _ in order], [seconds for _, seconds in order], log_spectra)
    return clips, tuple(len(own) for own in silos.values())


def _read(
    kind: recipes.Kind,
    path: Path,
    parts: Sequence[str],
    language: str = "en",
    keep: Callable[[str], bool] | None = None,
) -> Clips:
    found, _ = _cuts(kind, path, parts, language, keep)
    return ReadClips([one for one, _ in found.values()], [seconds for _, seconds in found.values()], log_spectra)


def _examples(kind: recipes.Kind, path: Path, part: str, language: str) -> tuple[Example, ...]:
    found, _ = _cuts(kind, path, [part], language)
    return tuple(
        Example(log_spectra(one.load()).astype(np.float16), one.text or "", one.speaker) for one, _ in found.values()
    )
