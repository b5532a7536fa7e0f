"""The rows of Rao et al. 2023's tables on made speech: base model, speech, every method under every seed, kept on the
way."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from safetensors.numpy import load_file

from device_sdk.bundle import Bundle
from device_sdk.errors import DataError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.settings import TeacherSettings
from examples.rao_2023.base import train_base
from examples.rao_2023.domains import Domain, Stage, general, read_requests, requests
from examples.rao_2023.labels import TextModel, general_text
from examples.rao_2023.measures import errors, newly_frequent, says_any
from examples.rao_2023.methods import CohortSettings, Method
from examples.rao_2023.rounds import learn, transcribe
from examples.rao_2023.speech import Clip, Said, clips_each, kept
from export.networks.rnnt import RNNT
from server.lab.simulation.progress import Tell, progress
from server.lab.training.data import Example
from server.lab.training.trainer import write_atomically
from server.web.dashboard.flatten import flatten

__all__ = ["INITIAL", "Experiment", "Row", "Scale", "methods", "run_rows", "teacher_name"]

INITIAL = "initial"

_TEST_SEED = 3  # of the people and scenes of a test
_LONGEST, _TURNS = 20, 4000  # words of a sentence and turns of meetings of the second pass
_KEPT = 100_000  # clips of a seed up to which they stay on the disk, about 3 GB


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is.

    longest: words of a sentence. turns: distinct turns of meetings among the general sentences. base_minutes: training
    time of the base model. persons: people who own devices; tested: people of a test.
    test, development: clips. rehearsal: pseudo-devices of a round. follow: the teacher's decay and interval; others:
    the rest of table 5. at_once: the teacher that is the student itself.
    """

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
    cohort: CohortSettings = field(default_factory=CohortSettings)

    @classmethod
    def full(cls) -> Scale:
        """The paper's: 400 devices and 40 pseudo-devices a round, 16 utterances each, 3,000 rounds, whole network."""
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
    follow = TeacherSettings(*scale.follow, confidence=0.0)
    rows = [
        Method("supervised oracle", "transcript"),
        Method("teacher not updated"),
        Method("teacher EMA", teacher=follow),
        Method("EMA + transcript", teacher=follow, weak=("transcript",)),
        Method("EMA + transcript + slots", teacher=follow, weak=("transcript", "slots")),
        Method("EMA + slots", teacher=follow, weak=("slots",)),
        Method("EMA + score", teacher=follow, weak=("score",)),
    ]
    rows += [Method(f"score only, noise {s:g}", "none", weak=("score",), sigma=s) for s in (0.0, 0.1, 0.2, 0.4)]
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
        threads: int = 1,
        base: Path | None = None,
        bundle: Bundle | None = None,
    ) -> None:
        """base: weights to begin with instead of training. bundle: what they grow from; by default the packaged one."""
        torch.set_num_threads(threads)
        self.data, self.work, self.scale, self.threads, self.given = data, work, scale, threads, base
        self.bundle = bundle or Bundle.open()
        self._tested: dict[tuple[str, Stage], list[Clip]] = {}

    @cached_property
    def requests(self) -> Domain:
        return requests(self.data, self.scale.longest, self.general)

    @cached_property
    def general(self) -> Domain:
        unsaid = read_requests(self.data / "slurp" / "devel.jsonl")
        return general(self.data, self.scale.longest, self.scale.turns, unsaid=unsaid)

    @cached_property
    def lexicon(self) -> SlotLexicon:
        """The values of every slot, of all stages: an app knows what it can be asked for."""
        return SlotLexicon.from_labels(s.slots for stage in self.requests.sentences.values() for s in stage)

    @cached_property
    def text(self) -> TextModel:
        """What the second pass knows: every general sentence of the stage that learns, short or long."""
        unsaid = read_requests(self.data / "slurp" / "devel.jsonl")
        sentences = general(self.data, _LONGEST, _TURNS, least=1, unsaid=unsaid).sentences["learn"]
        return general_text([sentence.text for sentence in sentences])

    @cached_property
    def delta(self) -> list[bool]:
        """Which test clips of the new domain say what has become five times as frequent."""
        before = (sentence.text for sentence in self.general.sentences["learn"])
        found = newly_frequent(before, (sentence.text for sentence in self.requests.sentences["learn"]), least=2)
        return [says_any(clip.sentence.text, found) for clip in self.tested(self.requests)]

    def tested(self, domain: Domain, stage: Stage = "test") -> list[Clip]:
        """The clips of a domain's test (or development)."""
        if (held := self._tested.get((domain.name, stage))) is not None:
            return held
        count = self.scale.test if stage == "test" else self.scale.development
        path = self.work / "speech" / f"{domain.name}-{stage}.safetensors"
        seed = _TEST_SEED if stage == "test" else 1
        with progress() as tell:
            told = partial(tell, f"speech, {domain.name}, {stage}")
            self._tested[domain.name, stage] = found = kept(
                path, domain.sentences[stage], lambda: clips_each(domain, stage, self.scale.tested, count, seed, told)
            )
        return found

    @cached_property
    def words(self) -> list[str]:
        """Every word of what people say to their devices."""
        return sorted({word for sentence in self.requests.sentences["learn"] for word in sentence.text.split()})

    def said(self, domain: Domain, count: int, seed: int, tell: Tell) -> Said:
        """What people say to their devices (or what is remembered of the old domain), in the order of time."""
        folder = self.work / "speech" if count <= _KEPT else None
        what = f"speech, {domain.name}, seed {seed}"
        return Said(domain, "learn", self.scale.persons, count, seed, folder, partial(tell, what))

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
        base = self.work / "base"
        given = (scale.base_minutes, scale.longest, scale.turns)
        return train_base(self.data, self.bundle, base, *given, watched, self.threads)

    def row(self, method: Method | None, seed: int) -> Row:
        """One method under one seed, or the initial model."""
        name = INITIAL if method is None else method.name
        self._same_settings()
        path = self.work / "rows" / f"{name.replace(' ', '-')}-{seed}.json"
        if path.exists():
            return _read_row(path)
        begun = time.monotonic()
        found = Row(name, seed, (), ())
        weights = self.base
        if method is not None:
            cohort = self.scale.cohort
            development = self.tested(self.requests, "development")
            with progress() as tell:
                count = cohort.rounds * cohort.batch
                said = self.said(self.requests, count * cohort.devices, seed, tell)
                remembered = self.said(self.general, count * method.rehearsal, seed, tell)

                def watch(number: int, student: RNNT) -> float:
                    tell(f"{name}, seed {seed}", number, cohort.rounds)
                    return errors(development, transcribe(student, self.bundle.tokenizer, development)).rate

                learned = learn(
                    self.bundle.architecture,
                    weights,
                    self.bundle.tokenizer,
                    method,
                    cohort,
                    said,
                    remembered,
                    self.words,
                    self.lexicon,
                    self.text,
                    seed,
                    watch,
                )
            weights = learned.weights
            found = replace(found, curve=learned.curve, losses=learned.losses, diverged=learned.diverged)
        network = RNNT(self.bundle.architecture).eval().from_parameters(weights)
        texts = [transcribe(network, self.bundle.tokenizer, self.tested(d)) for d in (self.requests, self.general)]
        found = replace(
            found, requests=tuple(texts[0]), general=tuple(texts[1]), seconds=round(time.monotonic() - begun, 1)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(found)).encode())
        return found

    @cached_property
    def _settings(self) -> dict[str, str]:
        """What decides a row, as text."""
        base = None if self.given is None else hashlib.sha256(self.given.read_bytes()).hexdigest()
        return {name: str(value) for name, value in flatten(asdict(self.scale)).items()} | {"base": str(base)}

    def _same_settings(self) -> None:
        """Rows of one folder are compared with each other. DataError: it holds rows of other settings."""
        mine, path = self._settings, self.work / "settings.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(mine, indent=1).encode())
            return
        try:
            held: dict[str, str] = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise DataError(f"{path}: not JSON ({error}); delete it and rows/ to begin again") from error
        for name in mine | held:
            if held.get(name) != mine.get(name):
                raise DataError(
                    f"{path}: {name}: the rows here were made with {held.get(name)}, this run has {mine.get(name)}; "
                    "give another --work, or delete this file and rows/"
                )


def run_rows(
    experiment: Experiment, seeds: Sequence[int], only: Sequence[str] = (), console: Console | None = None
) -> list[Row]:
    """Every row with all its seeds before the next row, so that a run cut short leaves whole rows.

    only: of the methods, those that are named so, or whose name holds one of these; none stands for all.
    """
    known = {method.name: method for method in methods(experiment.scale)}
    wanted: set[str] = set() if only else set(known)
    for part in only:
        held = {part} if part in known else {name for name in known if part in name}
        if not held:
            raise DataError(f"rows: no name holds {part!r}; expected part of one of: {', '.join(known)}")
        wanted |= held
    chosen = [method for name, method in known.items() if name in wanted]
    found = []
    for method in (None, *chosen):
        for seed in seeds:
            row = experiment.row(method, seed)
            found.append(row)
            if console is not None:
                rates = [
                    errors(experiment.tested(domain), texts).rate
                    for domain, texts in ((experiment.requests, row.requests), (experiment.general, row.general))
                ]
                console.print(f"seed {seed}  {row.name:28} requests {rates[0]:.3f}  general {rates[1]:.3f}")
    return found


def _read_row(path: Path) -> Row:
    try:
        held: dict[str, Any] = json.loads(path.read_text("utf-8"))
        curve = tuple((int(number), float(rate)) for number, rate in held.pop("curve"))
        texts: dict[str, Sequence[Any]] = {key: tuple(held.pop(key)) for key in ("requests", "general", "losses")}
        return Row(**held, curve=curve, **texts)  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: not a finished row ({error!r}); delete it to have it run again") from error
