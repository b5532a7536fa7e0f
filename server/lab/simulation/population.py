"""Who takes part: devices with what their users say round by round, and held-out voices.

Three sets of voices share nobody: those the bundle was trained on (its card lists them), the devices' and the held-out
ones. Speech is rendered once into a folder and read from there by every condition."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, pairwise
from pathlib import Path

import numpy as np

from device_sdk.errors import DataError
from device_sdk.feedback.slots import SlotLexicon
from server.lab.corpora import Corpus, Utterance, kind_of, open_corpus
from server.lab.corpora.acoustics import GENTLE, Ranges
from server.lab.corpora.grammar import lexicon, sample
from server.lab.corpora.made import Person, draw_people, made_utterance
from server.lab.corpora.roles import UNHEARD, Listed, Role, scoring
from server.lab.corpora.voices import VARIANTS


@dataclass(frozen=True, slots=True)
class Participant:
    """One voice. rounds: what it says in each round; a held-out voice has one. Speech lies in files, float32 [S]."""

    name: str
    rounds: tuple[tuple[Utterance, ...], ...]


@dataclass(frozen=True, slots=True)
class Population:
    """Everybody in one seed's simulation. base: voices the bundle was trained or chosen on, as its card says."""

    devices: tuple[Participant, ...]
    heldout: tuple[Participant, ...]
    lexicon: SlotLexicon | None
    base: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a simulation is. None takes everything a real corpus has. each: utterances a device says in a round;
    heldout_each: utterances of a held-out voice."""

    rounds: int = 3
    devices: int | None = None
    each: int | None = None
    heldout: int | None = None
    heldout_each: int | None = None


HABITS = 8
HABITUAL = 0.15
"""A made person says one of HABITS own commands this often (the first most, as 1 / rank), else a new one, with
favourite names, songs and so on of its own. In the meetings of ICSI's series one's own past takes 10.05 to 8.68 bits a
word (-1.37); the past of a made person, from 200 words on, takes the packaged unigram's 9.46 to 8.11 (-1.35). This is
full habit, 1; at 0.5 people say own commands half as often, and half of the others without favourites, at 0 never."""

REGIONAL = 0.0
"""How often a made person has a regional accent: of those that training never heard the packaged model hears 9 to 20 %
of the words wrongly, of the others 2 to 8 %."""

IN_ORDER = frozenset({"librispeech"})
"""Corpora whose speakers go on where they were: of a book read aloud, whose people come again. Others are shuffled."""

MADE = {"devices": 6, "each": 10, "heldout": 3, "heldout_each": 12}


def gather(
    source: str,
    seed: int,
    shape: Shape,
    voices: Listed,
    folder: Path,
    tell: Callable[[int, int], None] = lambda done, total: None,
    ranges: Ranges = GENTLE,
    habit: float = 1.0,
) -> Population:
    """The population of one seed, its speech rendered into ``folder``. source: ``made``, or KIND:PATH. voices: what the
    bundle's card lists; others are as the split says. tell(done, all): called as speech is rendered. ranges: of the
    rooms and microphones of made people; habit: how much of their habits, 0 to 1. Raises DataError where the source
    leaves no voice for devices or none to hold out."""
    if source == "made":
        words: SlotLexicon | None = lexicon()
        base = VARIANTS["base"]
        filled = {name: getattr(shape, name) or usual for name, usual in MADE.items()}
        said = _make_voices(seed, replace(shape, **filled), ranges, habit)
    else:
        role, kind = scoring(voices), kind_of(source)
        corpus = open_corpus(source, UNHEARD, role=role, seed=seed)
        words, listed = corpus.lexicon, voices.get(kind, {})
        base = (*listed.get("base", ()), *listed.get("development", ()))
        said = _voices_of(corpus, seed, shape, {name: role(kind, name) for name in corpus.speakers})
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(len(round_) for voices_ in said for _, rounds in voices_ for round_ in rounds)
    done = count(1)

    def render(utterance: Utterance) -> Utterance:
        path = folder / f"{hashlib.sha256(utterance.id.encode()).hexdigest()[:24]}.npy"
        np.save(path, np.asarray(utterance.load(), np.float32), allow_pickle=False)
        tell(next(done), total)
        slots = dict(utterance.slots) if utterance.slots is not None else None
        return replace(utterance, slots=slots, audio=partial(np.load, path, allow_pickle=False))

    devices, heldout = (
        tuple(Participant(name, tuple(tuple(map(render, round_)) for round_ in rounds)) for name, rounds in voices_)
        for voices_ in said
    )
    return Population(devices, heldout, words, base)


_Voices = list[tuple[str, list[list[Utterance]]]]


def _make_voices(seed: int, shape: Shape, ranges: Ranges, habit: float) -> tuple[_Voices, _Voices]:
    """Made people, each with an own voice, room and habits; sentences of the devices' and the held-out splits."""

    def talk(split: Role, persons: int | None, rounds: int, each: int | None) -> _Voices:
        assert persons is not None and each is not None
        found: _Voices = []
        for number, person in enumerate(draw_people(split, persons, seed, ranges, regional=REGIONAL)):
            said = _sentences(person, split, number, each * rounds, seed, habit)
            title = f"{person.voice.variant} ({person.voice.accent})"
            found.append((title, [said[start : start + each] for start in range(0, len(said), each)]))
        return found

    devices = talk("devices", shape.devices, shape.rounds, shape.each)
    return devices, talk("heldout", shape.heldout, 1, shape.heldout_each)


def _sentences(
    person: Person, split: Role, number: int, utterances: int, seed: int, habit: float = 1.0
) -> list[Utterance]:
    """What one person says: mostly a few phrases of its own, now and then something else, never twice quite alike."""
    generator = np.random.default_rng([seed, number, *split.encode()])
    draw = partial(sample, generator, split)
    habits = [draw(person.profile) for _ in range(HABITS)]
    shares = 1.0 / np.arange(1, HABITS + 1)
    shares /= shares.sum()
    said = []
    for position in range(utterances):
        if generator.random() < HABITUAL * habit:
            command = habits[generator.choice(HABITS, p=shares)]
        else:
            command = draw(person.profile if habit == 1.0 or generator.random() < habit else None)
        pitch = int(np.clip(person.voice.pitch + generator.integers(-4, 5), 0, 99))
        rate = int(np.clip(person.voice.rate + generator.integers(-10, 11), 80, 450))
        own = replace(person, voice=replace(person.voice, pitch=pitch, rate=rate))
        said.append(made_utterance(command, own, (seed, number, position)))
    return said


def _voices_of(corpus: Corpus, seed: int, shape: Shape, role: Mapping[str, Role]) -> tuple[_Voices, _Voices]:
    """Speakers of real recordings, devices and held-out ones; where all have one role, one of them takes the other,
    under every seed the next."""
    devices, heldout = ([name for name in corpus.speakers if role[name] == each] for each in UNHEARD)
    if not heldout and len(devices) > 1:
        heldout = [devices.pop(seed % len(devices))]
    if not devices and len(heldout) > 1:
        devices = [heldout.pop(seed % len(heldout))]
    if not devices or not heldout:
        raise DataError(
            f"{corpus.name}: {len(corpus.speakers)} voices that are not in base training; expected at least two, one "
            "to learn and one to hold out"
        )

    def talk(name: str, most: int | None, rounds: int) -> tuple[str, list[list[Utterance]]]:
        own = corpus.of_speakers(name).utterances
        order = np.random.default_rng([seed, *name.encode()]).permutation(len(own))
        said = [own[index] for index in (range(len(own)) if kind_of(corpus.name) in IN_ORDER else order)][:most]
        bounds = [round(len(said) * number / rounds) for number in range(rounds + 1)]
        return name, [said[start:end] for start, end in pairwise(bounds)]

    most = shape.each * shape.rounds if shape.each else None
    return (
        [talk(name, most, shape.rounds) for name in devices[: shape.devices]],
        [talk(name, shape.heldout_each, 1) for name in heldout[: shape.heldout]],
    )
