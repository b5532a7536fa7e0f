"""Speech to train on, made shard by shard: commands spoken by espeak-ng and real recordings, through random rooms.

A shard is a function of (mixture, seed, index), so a run can be repeated and resumed. Background processes make the
coming shards while the loop trains on the present ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError
from device_sdk.features.logmel import FeatureSettings, logmel
from server.lab.corpora import grammar
from server.lab.corpora.accents import draw_rhythm, draw_sounds, foreign
from server.lab.corpora.acoustics import GENTLE, STRONG, Ranges, apply_scene, augment, draw_noise, draw_scene, pad
from server.lab.corpora.made_names import renamed
from server.lab.corpora.readers import DIGITS
from server.lab.corpora.throats import draw_throat
from server.lab.corpora.utterance import SAMPLE_RATE, Waveform
from server.lab.corpora.voices import Voice, draw_voice, speak
from server.lab.training.data import Example, read_shard, write_shard
from server.lab.training.recordings import SPOKEN, Recording, join, trim

REAL = Ranges(
    speed=(0.86, 1.17),
    reverb=0.2,
    reverb_seconds=(0.08, 0.4),
    direct_db=(2.0, 15.0),
    noise=0.4,
    snr_db=(12.0, 40.0),
    eq_db=2.5,
    tilt_db=1.2,
    band=0.1,
    clip=0.03,
    codec=0.1,
    hum=0.05,
    edges_seconds=(0.0, 0.45),
)
"""Real recordings bring their own room and microphone: less is added to them, and a small network that is trained for
hours, not days, makes as many errors on its own voices as on others."""


_FOREIGNERS, _OWN_ACCENTS = 0.45, 0.25
"""How many made voices have a foreign mother tongue, and how many an accent and a rhythm of their own."""
_THROATS = 0.5
"""How many made voices have a throat that nobody has, instead of one of the base variants'."""
_UNLISTED = 0.6
"""How often people and things in a command are none that the grammar lists."""
_NUMBERS, _TELEPHONE, _KNOWN_DIGITS = 0.65, replace(REAL, band=0.5), 4
"""How often a string of several words is a number, as people say them; half of these over a telephone. Only of speakers
of whom that many digits are there: most are known by other words."""
_CLEAR = replace(
    GENTLE, reverb=0.2, noise=0.5, snr_db=(20.0, 40.0), eq_db=1.5, band=0.0, hum=0.0, edges_seconds=(0.05, 0.15)
)


@dataclass(frozen=True, slots=True)
class Mixture:
    """What a shard is made of.

    intents: share of made utterances drawn from single intents of the grammar; sentences_share: of ``sentences`` (the
    user's text); the rest is the whole grammar. recorded: share of all utterances that are recordings; of one word they
    are joined to strings of up to eight of one speaker, most of them numbers, four in ten stay alone, and take
    ``joined`` of that share. noises: recordings of what homes sound like when nobody speaks, float32 [S] each.
    scenes: rooms and microphones of made utterances, recorded or not. voices: who speaks them; none stands for any
    voice of the base set, most of them foreigners or with accents of their own. waiting: share of utterances with up to
    2.5 s of the room before and after the speech; quiet: share of all that hold none, and no text, so that a model
    learns to hear nothing in silence and noise. features: what is kept of the sound."""

    sentences: tuple[str, ...] = ()
    recordings: tuple[Recording, ...] = ()
    intents: Mapping[str, float] = field(
        default_factory=lambda: {"order_drink": 0.12, "digits": 0.1, "call": 0.1, "message": 0.05}
    )
    sentences_share: float = 0.3
    recorded: float = 0.3
    joined: float = 0.45
    noises: tuple[Waveform, ...] = ()
    scenes: Ranges = STRONG
    voices: tuple[Voice, ...] = ()
    waiting: float = 0.0
    quiet: float = 0.0
    features: FeatureSettings = field(default_factory=FeatureSettings)

    def __post_init__(self) -> None:
        if sum(self.intents.values()) + self.sentences_share > 1.0:
            raise ConfigurationError("mixture: the shares of intents and sentences add up to more than 1")

    def words(self) -> set[str]:
        """All that may be said."""
        texts = (*self.sentences, *(recording.text for recording in self.recordings))
        return {word for text in texts for word in text.split()} | set(grammar.vocabulary())


def sentence(mixture: Mixture, generator: np.random.Generator) -> str:
    """Words for a made utterance, from the base split only."""
    draw = generator.random()
    for intent, share in mixture.intents.items():
        if draw < share:
            while (command := grammar.sample(generator, "base")).intent != intent:
                pass
            return _said(command, generator)
        draw -= share
    if mixture.sentences and draw < mixture.sentences_share:
        return mixture.sentences[generator.integers(len(mixture.sentences))]
    return _said(grammar.sample(generator, "base"), generator)


def _said(command: grammar.Command, generator: np.random.Generator) -> str:
    """People and things have names that no grammar lists."""
    return renamed(command, generator) if generator.random() < _UNLISTED else command.text


def make_shard(mixture: Mixture, seed: int, index: int, count: int) -> list[Example]:
    """``count`` utterances: shard ``index`` of a run with this seed. Shard 0 is easy: a few clear words each."""
    generator = np.random.default_rng([seed, index])
    if index == 0:
        return [_easy(mixture, generator) for _ in range(count)]
    phrases = [r for r in mixture.recordings if " " in r.text]
    words: dict[str, list[Recording]] = {}
    for recording in mixture.recordings:
        if " " not in recording.text:
            words.setdefault(recording.speaker, []).append(recording)
    real = round(count * mixture.recorded) if mixture.recordings else 0
    strings = 0 if not words else real if not phrases else round(real * mixture.joined)
    digits = _digits(words)
    examples = [_string(words, digits, generator, mixture) for _ in range(strings)]
    for recording in _balanced(phrases, real - strings, generator):
        scenes = _waiting(mixture.scenes if recording.source == SPOKEN else REAL, mixture, generator)
        waveform = augment(trim(recording.waveform, generator), generator, scenes, mixture.noises)
        examples.append(_finish(waveform, recording.text, recording.source, generator, mixture))
    examples += [_quiet(mixture, generator) for _ in range(round(count * mixture.quiet))]
    while len(examples) < count:
        text, voice = sentence(mixture, generator), _voice(mixture, generator)
        if generator.random() < 0.15:
            voice = replace(voice, word_gap=int(generator.integers(2, 12)))
        apart = generator.random() < (0.5 if set(text.split()) <= set(DIGITS) else 0.03)
        if apart:  # each word on its own
            spoken = np.concatenate([pad(speak(w, voice), 0.0, generator.uniform(0.0, 0.3)) for w in text.split()])
        else:
            spoken = speak(text, voice)
        waveform = augment(spoken, generator, _waiting(mixture.scenes, mixture, generator), mixture.noises)
        examples.append(_finish(waveform, text, "made", generator, mixture))
    return examples


def _digits(words: Mapping[str, Sequence[Recording]]) -> dict[str, dict[str, list[Recording]]]:
    """source -> speaker -> digits, of speakers of whom enough are there. words: by speaker."""
    found: dict[str, dict[str, list[Recording]]] = {}
    for speaker, those in words.items():
        own = [recording for recording in those if recording.text in DIGITS]
        if len({recording.text for recording in own}) >= _KNOWN_DIGITS:
            found.setdefault(own[0].source, {})[speaker] = own
    return found


def _string(
    words: Mapping[str, Sequence[Recording]],
    digits: Mapping[str, Mapping[str, Sequence[Recording]]],
    generator: np.random.Generator,
    mixture: Mixture,
) -> Example:
    """A word, a string of words or a number of one speaker. words: by speaker; digits: by source, each as likely, and
    speaker."""
    count, known, scenes = 1 if generator.random() < 0.4 else int(generator.integers(2, 9)), words, REAL
    if count > 1 and digits and generator.random() < _NUMBERS:
        known, scenes = digits[sorted(digits)[generator.integers(len(digits))]], _TELEPHONE
    own = known[sorted(known)[generator.integers(len(known))]]
    waveform, text = join(own, count, generator)
    waveform = augment(waveform, generator, _waiting(scenes, mixture, generator), mixture.noises)
    return _finish(waveform, text, own[0].source, generator, mixture)


def _balanced(recordings: Sequence[Recording], count: int, generator: np.random.Generator) -> list[Recording]:
    """``count`` recordings, of each source in proportion to the root of how many it has: small sets are not drowned.
    None comes again before all of its source came."""
    sources = {
        source: [r for r in recordings if r.source == source] for source in sorted({r.source for r in recordings})
    }
    if not sources:
        return []
    roots = np.sqrt([len(each) for each in sources.values()])
    drawn = generator.multinomial(count, roots / roots.sum())
    orders = [(each, generator.permutation(len(each))) for each in sources.values()]
    return [each[order[i % len(each)]] for (each, order), n in zip(orders, drawn, strict=True) for i in range(n)]


def _easy(mixture: Mixture, generator: np.random.Generator) -> Example:
    """One to three words out of a sentence, clearly spoken in a quiet place; or a real word."""
    single = [recording for recording in mixture.recordings if " " not in recording.text]
    if single and generator.random() < 0.2:
        recording = single[generator.integers(len(single))]
        return Example(_features(pad(recording.waveform, 0.05, 0.15), mixture), recording.text, recording.source)
    words = sentence(mixture, generator).split()
    start = int(generator.integers(len(words)))
    text = " ".join(words[start : start + int(generator.integers(1, 4))])
    waveform = augment(speak(text, _voice(mixture, generator)), generator, _CLEAR)
    return Example(_features(waveform, mixture), text, "made")


def _waiting(scenes: Ranges, mixture: Mixture, generator: np.random.Generator) -> Ranges:
    """The scenes as they are, or with a long wait around the speech, which may be as quiet as a muted microphone."""
    if mixture.waiting == 0.0 or generator.random() >= mixture.waiting:
        return scenes
    return replace(scenes, noise=scenes.noise / 2, edges_seconds=(0.0, 2.5), floor_db=(-140.0, -60.0))


def _quiet(mixture: Mixture, generator: np.random.Generator) -> Example:
    """0.4 to 5 s in which nobody speaks: digital silence, or a room and a microphone, with clicks or without."""
    length = int(generator.uniform(0.4, 5.0) * SAMPLE_RATE)
    waveform = np.zeros(length, np.float32)
    if generator.random() < 0.85:
        scene = draw_scene(generator, mixture.scenes)
        noise = draw_noise(length, scene, generator, mixture.noises)
        level = 10 ** (generator.uniform(-80.0, -22.0) / 20)
        clicks = np.zeros(length)
        clicks[generator.integers(0, length, generator.integers(0, 4))] = generator.uniform(-8.0, 8.0)
        scene = replace(scene, gain_db=20 * math.log10(level), edges=(0.0, 0.0), speed=1.0)
        waveform = apply_scene((noise + clicks).astype(np.float32), scene, generator)
    return _finish(waveform, "", "made", generator, mixture)


def _voice(mixture: Mixture, generator: np.random.Generator) -> Voice:
    if mixture.voices:
        return mixture.voices[generator.integers(len(mixture.voices))]
    voice, accent = draw_voice("base", generator), generator.random()
    if generator.random() < _THROATS:
        voice = replace(voice, throat=draw_throat(generator))
    if accent < _FOREIGNERS:
        return foreign(voice, generator)
    if accent < _FOREIGNERS + _OWN_ACCENTS:
        return replace(voice, sounds=draw_sounds(generator), rhythm=draw_rhythm(generator))
    return voice


def _features(waveform: Waveform, mixture: Mixture) -> NDArray[np.float16]:
    return logmel(waveform, mixture.features).astype(np.float16)


def _finish(waveform: Waveform, text: str, source: str, generator: np.random.Generator, mixture: Mixture) -> Example:
    """Quiet at the end often, since the last words need time to come out, then features."""
    if generator.random() < 0.5:
        quiet = int(generator.uniform(0.1, 0.4) * SAMPLE_RATE)
        floor = generator.choice([0.0, 1e-5, 1e-4])
        waveform = np.concatenate([waveform, (generator.standard_normal(quiet) * floor).astype(np.float32)])
    return Example(_features(waveform, mixture), text, source)


AHEAD = 2
"""Shards of each process that are begun before they are asked for."""

_mixture: Mixture | None = None


def _prepare(mixture: Mixture) -> None:
    global _mixture
    os.nice(5)
    _mixture = mixture
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A run that is killed leaves nobody to tell this process that no more shards are wanted."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(path: Path, seed: int, index: int, count: int) -> None:
    assert _mixture is not None
    write_shard(path, make_shard(_mixture, seed, index, count))


class ShardMaker:
    """Owns the background processes and the folder of shards. Use as a context manager. Several processes are forks, at
    once, before anything takes a GPU: each would else need its own copy of the recordings."""

    def __init__(self, folder: Path, mixture: Mixture, seed: int, count: int, processes: int = 1) -> None:
        self.folder, self.seed, self.count, self.processes = folder, seed, count, processes
        folder.mkdir(parents=True, exist_ok=True)
        context = get_context("spawn" if processes == 1 else "fork")
        self._pool = ProcessPoolExecutor(processes, context, initializer=_prepare, initargs=(mixture,))
        if processes > 1:
            self._pool.submit(os.getpid).result()
        self._running: dict[int, Future[None]] = {}
        self._held: dict[int, list[Example]] = {}

    def __enter__(self) -> ShardMaker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def window(self, first: int, last: int) -> list[Example]:
        """The examples of shards ``first`` to ``last``; older ones are forgotten, coming ones are begun."""
        for index in range(first, last + 1 + AHEAD * self.processes):
            path = self._path(index)
            if not (index in self._held or index in self._running or path.exists()):
                self._running[index] = self._pool.submit(_make, path, self.seed, index, self.count)
        for index in [index for index in self._held if index < first]:
            del self._held[index]
            self._path(index).unlink(missing_ok=True)
        for index in range(first, last + 1):
            if index not in self._held:
                if index in self._running:
                    self._running.pop(index).result()
                self._held[index] = read_shard(self._path(index))
        return [example for index in range(first, last + 1) for example in self._held[index]]

    def _path(self, index: int) -> Path:
        return self.folder / f"shard-{index:05d}.safetensors"
