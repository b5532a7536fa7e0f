"""The rows of Rao et al. 2023's tables on made speech: base model, speech, every method under every seed, kept on the
way."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from device_sdk.bundle import Bundle
from device_sdk.errors import ConfigurationError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.settings import TeacherSettings
from examples.rao_2023.base import Start, train_base
from examples.rao_2023.domains import Domain, Stage, general, newly_frequent, requests, says_any
from examples.rao_2023.methods import CohortSettings, Method, Weak, general_text
from examples.rao_2023.rounds import Knowledge, Learned, learn, transcribe
from examples.rao_2023.speech import Clip, Said, clips_each, keep_clips
from examples.runner import Errors, digest, keep
from export.networks.rnnt import RNNT
from server.lab.evaluation.scores import word_errors
from server.lab.simulation.progress import Tell
from server.lab.training.data import Example

INITIAL = "initial"

_TEST_SEED = 3  # of the people and scenes of a test
_LONGEST, _TURNS = 20, 4000  # words of a sentence and turns of meetings of the second pass
_KEPT = 100_000  # clips of a seed up to which they stay on the disk, about 3 GB


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. longest: words of a sentence. turns: distinct turns of meetings among the general
    sentences. base_minutes: training time of the base model. persons: people who own devices; tested: people of a test.
    test, development: clips. rehearsal: pseudo-devices of a round. follow: the teacher's decay and interval; others:
    the rest of table 5. at_once: the teacher that is the student itself. weight: of feedback beside the label, where a
    row does not say; an expected cost pulls a quarter as hard as a label at most. preset: of the network, which is then
    trained from its beginning; None goes on with the packaged one."""

    longest: int = 8
    turns: int = 500
    base_minutes: float = 40.0
    persons: int = 240
    tested: int = 40
    test: int = 290
    development: int = 114
    rehearsal: int = 16
    follow: tuple[float, int] = (0.9, 3)
    others: tuple[tuple[float, int], ...] = ((0.9, 1), (0.9, 20), (0.98, 3))
    at_once: tuple[float, int] = (0.0, 1)
    weight: float = 2.0
    preset: str | None = None
    cohort: CohortSettings = field(default_factory=CohortSettings)

    @classmethod
    def full(cls) -> Scale:
        """The paper's: 60 M parameters, 400 devices and 40 pseudo-devices a round, 16 utterances each, 3,000 rounds,
        the whole network, losses of equal weight."""
        return cls(
            longest=14,
            turns=1_000_000,
            base_minutes=24 * 60.0,
            persons=20_000,
            test=4_000,
            development=1_000,
            rehearsal=40,
            follow=(0.999, 10),
            others=((0.999, 100), (0.999, 200), (0.9999, 10), (0.9999, 100)),
            at_once=(0.975, 1),
            weight=1.0,
            preset="paper",
            cohort=CohortSettings(rounds=3000, devices=400, batch=16, trained=("",), evaluate_every=250),
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One method under one seed: the texts of both tests, and how it went."""

    name: str
    seed: int
    requests: tuple[str, ...]
    general: tuple[str, ...]
    curve: tuple[tuple[int, float], ...] = ()
    losses: tuple[float, ...] = ()
    diverged: int | None = None
    seconds: float = 0.0


def methods(scale: Scale) -> list[Method]:
    """The rows of tables 2 to 5, but for the initial model."""
    follow, weight = TeacherSettings(*scale.follow, confidence=0.0), scale.weight
    single: tuple[Weak, ...] = ("slots", "score", "binary")
    kinds: list[tuple[Weak, ...]] = [("transcript",), ("transcript", "slots"), *((kind,) for kind in single)]
    rows = [
        Method("supervised oracle", "transcript"),
        Method("teacher not updated"),
        Method("teacher EMA", teacher=follow),
        *(Method(f"EMA + {' + '.join(weak)}", teacher=follow, weak=weak, weight=weight) for weak in kinds),
    ]
    if weight != 1.0:  # the paper's
        rows += [Method(f"EMA + {kind}, equal weights", teacher=follow, weak=(kind,)) for kind in single[:2]]
    rows += [
        Method(f"binary only, noise {sigma:g}", "none", weak=("binary",), sigma=sigma, weight=weight)
        for sigma in (0.0, 0.1, 0.2, 0.4)
    ]
    rows.append(Method("EMA + rehearsal", teacher=follow, rehearsal=scale.rehearsal))
    for decay, interval in (*scale.others, scale.at_once):
        settings = TeacherSettings(decay, interval, confidence=0.0)
        rows.append(Method(teacher_name(decay, interval), teacher=settings))
    return rows


def teacher_name(decay: float, interval: int) -> str:
    """A row of table 5."""
    return f"EMA {decay:g}, every {interval}"


class Experiment:
    """Owns the work folder and what is in it; makes what is missing when it is asked for."""

    def __init__(
        self,
        data: Path,
        work: Path,
        scale: Scale,
        tell: Tell = lambda *_: None,
        base: Path | None = None,
        bundle: Bundle | None = None,
    ) -> None:
        """base: weights to begin with instead of training. bundle: what they grow from; by default the packaged one."""
        torch.set_num_threads(1)
        if scale.preset is not None and bundle is not None:
            raise ConfigurationError(f"scale.preset: found {scale.preset!r} beside a bundle, expected one of them")
        self.bundle = (bundle or Bundle.open()) if scale.preset is None else None
        begun: list[bytes] = []
        if self.bundle is not None:
            begun.append(self.bundle.manifest.to_bytes())
        if base is not None:
            begun.append(base.read_bytes())
        begin = "".join(f"-{hashlib.sha256(content).hexdigest()[:8]}" for content in begun)
        self.data, self.work, self.scale, self.tell = data, work / f"{digest(scale)}{begin}", scale, tell
        self.given = base
        self._tested: dict[tuple[str, Stage], list[Clip]] = {}

    @cached_property
    def requests(self) -> Domain:
        return requests(self.data, self.scale.longest, self.general)

    @cached_property
    def general(self) -> Domain:
        return general(self.data, self.scale.longest, self.scale.turns)

    @cached_property
    def start(self) -> Start:
        """What the base model grows from, whose pieces all rows have. A new network's are made of general sentences."""
        if self.bundle is not None:
            return Start.of(self.bundle)
        assert self.scale.preset is not None
        return Start.untrained(self.scale.preset, (each.text for each in self.general.sentences["learn"]))

    @cached_property
    def known(self) -> Knowledge:
        """Every word of what people say to their devices; the values of every slot, of all stages, since an app knows
        what it can be asked for; and, for the second pass, every general sentence of the stage that learns."""
        words = sorted({word for each in self.requests.sentences["learn"] for word in each.text.split()})
        lexicon = SlotLexicon.from_labels(each.slots for stage in self.requests.sentences.values() for each in stage)
        sentences = general(self.data, _LONGEST, _TURNS, least=1).sentences["learn"]
        return Knowledge(words, lexicon, general_text([sentence.text for sentence in sentences]))

    @cached_property
    def delta(self) -> list[bool]:
        """Which test clips of the new domain say what has become five times as frequent."""
        before = (sentence.text for sentence in self.general.sentences["learn"])
        found = newly_frequent(before, (sentence.text for sentence in self.requests.sentences["learn"]), least=2)
        return [says_any(clip.sentence.text, found) for clip in self.tested(self.requests)]

    def tested(self, domain: Domain, stage: Stage = "test") -> list[Clip]:
        """The clips of a domain's test (or development)."""
        if (domain.name, stage) not in self._tested:
            count, seed = (self.scale.test, _TEST_SEED) if stage == "test" else (self.scale.development, 1)
            path = self.work / "speech" / f"{domain.name}-{stage}.safetensors"
            told = partial(self.tell, f"speech, {domain.name}, {stage}")
            make = partial(clips_each, domain, stage, self.scale.tested, count, seed, told)
            self._tested[domain.name, stage] = keep_clips(path, domain.sentences[stage], make)
        return self._tested[domain.name, stage]

    def said(self, domain: Domain, count: int, seed: int) -> Said:
        """What people say to their devices (or what is remembered of the old domain), in the order of time."""
        folder = self.work / "speech" if count <= _KEPT else None
        told = partial(self.tell, f"speech, {domain.name}, seed {seed}")
        return Said(domain, self.scale.persons, count, seed, folder, told)

    @cached_property
    def base(self) -> Mapping[str, NDArray[np.float32]]:
        """What devices begin with: the weights given, or the base model, trained where there is none yet."""
        if self.given is not None:
            return load_file(self.given)
        scale = self.scale
        watched = [
            Example(clip.features, clip.sentence.text, source)  # the blank is calibrated on the general ones
            for domain, source in ((self.general, "general.development"), (self.requests, "requests"))
            for clip in self.tested(domain, "development")
        ]
        given = (scale.base_minutes, scale.longest, scale.turns)
        return train_base(self.data, self.start, self.work / "base", *given, watched)

    def row(self, method: Method | None, seed: int) -> Row:
        """One method under one seed, or the initial model; a finished one is read."""
        name = INITIAL if method is None else method.name
        return keep(self.work / "rows", (name, seed), method or Method(INITIAL), Row, lambda: self._run(method, seed))

    def _run(self, method: Method | None, seed: int) -> Row:
        begun = time.monotonic()
        learned = Learned(self.base, (), ()) if method is None else self._learn(method, seed)
        network = RNNT(self.start.architecture).eval().from_parameters(learned.weights)
        new, old = (
            tuple(transcribe(network, self.start.tokenizer, self.tested(domain)))
            for domain in (self.requests, self.general)
        )
        seconds = round(time.monotonic() - begun, 1)
        name = INITIAL if method is None else method.name
        return Row(name, seed, new, old, learned.curve, learned.losses, learned.diverged, seconds)

    def _learn(self, method: Method, seed: int) -> Learned:
        cohort, development = self.scale.cohort, self.tested(self.requests, "development")
        count = cohort.rounds * cohort.batch

        def watch(number: int, student: RNNT) -> float:
            self.tell(f"{method.name}, seed {seed}", number, cohort.rounds)
            return errors(development, transcribe(student, self.start.tokenizer, development)).rate

        said = self.said(self.requests, count * cohort.devices, seed)
        remembered = self.said(self.general, count * method.rehearsal, seed)
        return learn(self.start, self.base, method, cohort, said, remembered, self.known, seed, watch)


def errors(clips: Sequence[Clip], texts: Sequence[str]) -> Errors:
    """Word errors of each hypothesis [N] against its clip [N]."""
    truths = [clip.sentence.text for clip in clips]
    wrong = [word_errors(truth, text) for truth, text in zip(truths, texts, strict=True)]
    return Errors(wrong, [len(truth.split()) for truth in truths], [clip.person for clip in clips])
