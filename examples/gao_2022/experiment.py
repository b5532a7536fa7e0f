"""Rows of table 1 and of figure 3: every recipe for every language and seed, kept on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file, save_file

from device_sdk.commands.output import write_file
from device_sdk.errors import DataError
from examples.gao_2022.recipes import Recipe
from examples.gao_2022.speech import Crowd, CrowdScale, Language, gathered, items_of
from export.networks.alphabet import ALPHABETS
from export.networks.ctc_transformer import CTCTransformer, CTCTransformerShape
from server.lab.simulation.dictation.speech import Spoken
from server.lab.simulation.engine.central import Central, learned_centrally
from server.lab.simulation.engine.measures import evaluate, summary
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.rounds import engine
from server.lab.simulation.engine.run import run
from server.lab.simulation.engine.tasks import SpeechCTC
from server.lab.simulation.progress import Tell
from server.lab.training.augmentation import Augmentation
from server.lab.training.data import Example
from server.lab.training.data.partitions import cross_silo, local_tests, speakers_together, warm_up_split

__all__ = ["Experiment", "Row", "Scale"]

SMALL = CTCTransformerShape(mel_bins=16, size=48, feed_forward=128, layers=3, heads=2, dropout=0.0, layer_drop=0.0)
MASKS = Augmentation(time_masks=2, time_width=12, bin_masks=1, bin_width=3)
SILOS = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. central: training of the warm-up model, and of the others that are trained in one place,
    with steps in proportion to their speech."""

    crowd: CrowdScale = field(default_factory=CrowdScale)
    shape: CTCTransformerShape = SMALL
    central: Central = field(default_factory=lambda: Central(steps=2000, batch=16, peak=5e-3))
    rounds: int = 20
    cohort: int = 20

    @classmethod
    def full(cls) -> Scale:
        """As many speakers as the paper's French set has, and a larger network: for a GPU."""
        return cls(
            crowd=CrowdScale(speakers=4212, tested=400, least=5, most=400, digits=6, bins=64),
            shape=CTCTransformerShape(mel_bins=64, size=256, feed_forward=1024, layers=12, dropout=0.1, layer_drop=0.0),
            central=Central(steps=60_000, batch=64, peak=1e-3),
            rounds=100,
            cohort=100,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe for one language and seed. error: of words, of speakers whom nobody learned from. clients: of each
    user's own held-back sentences (figure 4), in a fixed order of users; None where one held none back. losses: of
    rounds."""

    name: str
    language: str
    seed: int
    error: float
    clients: Sequence[float | None]
    losses: Sequence[float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Parts:
    """A crowd divided: sentences of the warm-up speakers; those that each other user learns from, and is tested on."""

    warm_up: Sequence[Example]
    users: Mapping[str, Sequence[Example]]
    own: Mapping[str, Sequence[Example]]
    tested: Sequence[Example]


class Experiment:
    """Owns the work folder: speech, models trained in one place, states of runs and finished rows."""

    def __init__(self, work: Path, scale: Scale, tell: Tell = lambda *_: None, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        digest = sha256(json.dumps(asdict(scale)).encode()).hexdigest()[:8]
        self.work, self.scale, self.tell = work / digest, scale, tell
        self.speech = work / "speech"  # whose names say of which crowd it is, so that other scales find it too
        self.parts = lru_cache(maxsize=1)(self._parts)

    def row(self, recipe: Recipe, language: Language, seed: int) -> Row:
        """A finished row, or a run from where it was stopped."""
        path = self.work / "rows" / f"{_slug(recipe.name)}-{language}-{seed}.json"
        if path.exists():
            return _read(path)
        begun, losses = time.monotonic(), []
        if recipe.engine is None:
            weights = self.central(recipe.holders, language, seed)
        else:
            settings = recipe.engine.model_copy(update={"seed": seed})
            remembered = self._spoken([self.parts(language, seed).warm_up], language)
            plan = engine(settings, self.task(language, seed), self.population(recipe, language, seed), remembered)

            def watch(state: Any) -> None:
                self.tell(f"{recipe.name}, {language}, seed {seed}", state.number, settings.rounds)

            begin = None if recipe.scratch else self.central("warm-up", language, seed)
            state = run(plan, path.with_suffix(""), begin, watch, save_every=5)
            weights, losses = state.weights, [entry["loss"] for entry in state.history]
        error, clients = self.scores(weights, language, seed)
        row = Row(recipe.name, language, seed, error, clients, losses, round(time.monotonic() - begun, 1))
        write_file(path, json.dumps(asdict(row)), folders=True)
        return row

    def scores(self, weights: Arrays, language: Language, seed: int) -> tuple[float, list[float | None]]:
        """(word error of the tested speakers, that of every user's own held-back sentences)."""
        parts, task = self.parts(language, seed), self.task(language, seed)
        tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
        every = self._spoken([[each] for each in parts.tested], language, masked=False)
        error = summary(evaluate(task, tensors, every, range(len(every))))["error"]
        users = [name for name in parts.users if parts.own.get(name)]
        held = self._spoken([parts.own[name] for name in users], language, masked=False)
        own = {
            name: score.wrong / max(1, score.counted)
            for name, score in zip(users, evaluate(task, tensors, held, range(len(held))), strict=True)
        }
        return error, [own.get(name) for name in parts.users]

    def population(self, recipe: Recipe, language: Language, seed: int) -> Spoken:
        """The clients of a federation: users, two of them, or ten silos."""
        users = self.parts(language, seed).users
        if recipe.holders == "users":
            return self._spoken(list(users.values()), language)
        named = {f"{name}-{place:06d}": each for name, own in users.items() for place, each in enumerate(own)}
        items = items_of(named)
        split = cross_silo(items, SILOS, seed) if recipe.holders == "silos" else speakers_together(items, 2, seed)
        return self._spoken([[named[name] for name in names] for names in split.values()], language)

    def task(self, language: Language, seed: int) -> SpeechCTC:
        """The network with the initial weights of a seed."""
        alphabet = ALPHABETS[language]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = CTCTransformerShape(**(self.scale.shape.to_mapping() | {"tokens": alphabet.size}))
            return SpeechCTC(CTCTransformer(shape), alphabet)

    def central(self, holders: str, language: Language, seed: int) -> Arrays:
        """Trained in one place: on everything, on the warm-up speakers' speech, or on the rest after that."""
        path = self.work / "central" / f"{holders}-{language}-{seed}.safetensors"
        if path.exists():
            return load_file(path)
        parts = self.parts(language, seed)
        rest = [example for own in parts.users.values() for example in own]
        speech = {"everything": [*parts.warm_up, *rest], "warm-up": parts.warm_up, "rest": rest}[holders]
        begin = self.central("warm-up", language, seed) if holders == "rest" else None
        share = len(speech) / len(parts.warm_up)
        whole = self.scale.central
        plan = Central(max(1, round(whole.steps * share)), whole.batch, whole.peak, whole.clip_norm)
        found = learned_centrally(
            self.task(language, seed),
            self._spoken([speech], language),
            plan,
            seed,
            begin,
            lambda done, total: self.tell(f"central, {holders}, {language}, seed {seed}", done, total),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(found, path)
        return found

    def _parts(self, language: Language, seed: int) -> Parts:
        crowd = self.crowd(language, seed)
        first, rest = warm_up_split(items_of(crowd.learned))
        silos: dict[str, list[str]] = {}
        for item in rest:
            silos.setdefault(item.speaker, []).append(item.id)
        train, test = local_tests({name: tuple(own) for name, own in silos.items()}, least=1, seed=seed)
        of = crowd.learned
        return Parts(
            [of[item.id] for item in first],
            {name: [of[each] for each in own] for name, own in train.items()},
            {name: [of[each] for each in own] for name, own in test.items()},
            list(crowd.tested.values()),
        )

    def crowd(self, language: Language, seed: int) -> Crowd:
        def told(done: int, total: int) -> None:
            self.tell(f"speech, {language}, seed {seed}", done, total)

        return gathered(language, self.scale.crowd, seed, self.speech, told)

    def _spoken(self, voices: Sequence[Sequence[Example]], language: Language, masked: bool = True) -> Spoken:
        return Spoken(voices, ALPHABETS[language], MASKS if masked else None)


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def _read(path: Path) -> Row:
    try:
        return Row(**json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a finished row ({error!r}); delete it to have it run again") from error
