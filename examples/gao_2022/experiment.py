"""Rows of table 1 and of figure 3: every recipe for every language and seed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from examples.cohorts import MASKS, Central, Spoken, network, scores, train_centrally
from examples.gao_2022.recipes import Recipe
from examples.gao_2022.speech import Crowd, CrowdScale, Language, gather, items_of
from examples.runner import digest, keep, keep_weights
from export.networks.ctc_transformer import ALPHABETS, CTCTransformerShape
from server.lab.corpora.partitions import cross_silo, local_tests, speakers_together, warm_up_split
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.rounds import engine, run_rounds
from server.lab.simulation.engine.tasks import SpeechCTC, summary
from server.lab.simulation.progress import Tell
from server.lab.training.data import Example

SMALL = CTCTransformerShape(mel_bins=16, size=48, feed_forward=128, layers=3, heads=2, dropout=0.0, layer_drop=0.0)
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
            crowd=CrowdScale(speakers=4212, tested=400, held=400, least=5, most=400, digits=6, bins=64),
            shape=CTCTransformerShape(mel_bins=64, size=256, feed_forward=1024, layers=12, dropout=0.1, layer_drop=0.0),
            central=Central(steps=60_000, batch=64, peak=1e-3),
            rounds=100,
            cohort=100,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe for one language and seed. error: of words, of speakers whom nobody learned from. clients: of each
    user's own held-back sentences (figure 4), in a fixed order of users; None where one held none back. losses,
    effective: of rounds; how many clients of equal weight would count as much."""

    name: str
    language: str
    seed: int
    error: float
    clients: Sequence[float | None]
    losses: Sequence[float]
    effective: Sequence[float]
    seconds: float


@dataclass(frozen=True, slots=True)
class Parts:
    """A crowd divided: sentences of the warm-up speakers; those that each other user learns from, and holds back, which
    weigh it and are figure 4's; those of the test, and of the server's step on held-out speech."""

    warm_up: Sequence[Example]
    users: Mapping[str, Sequence[Example]]
    own: Mapping[str, Sequence[Example]]
    tested: Sequence[Example]
    held: Sequence[Example]


class Experiment:
    """Owns the work folder: speech, models trained in one place, states of runs and finished rows."""

    def __init__(self, work: Path, scale: Scale, tell: Tell = lambda *_: None) -> None:
        torch.set_num_threads(1)
        self.work, self.scale, self.tell = work / digest(scale), scale, tell
        self.speech = work / "speech"  # whose names say of which crowd it is, so that other scales share it
        self.parts = lru_cache(maxsize=1)(self._parts)

    def row(self, recipe: Recipe, language: Language, seed: int) -> Row:
        """A finished row, or a run from where it was stopped."""
        names = recipe.name, language, seed
        return keep(self.work / "rows", names, recipe, Row, lambda: self._run(recipe, language, seed))

    def _run(self, recipe: Recipe, language: Language, seed: int) -> Row:
        begun = time.monotonic()
        history: Sequence[Mapping[str, Any]] = ()
        if recipe.engine is None:
            weights = self.central(recipe.holders, language, seed)
        else:
            settings = recipe.engine.model_copy(update={"seed": seed})
            remembered = self._masked([self.parts(language, seed).held], language)
            plan = engine(settings, self.task(language, seed), self.population(recipe, language, seed), remembered)
            told = partial(self.tell, f"{recipe.name}, {language}, seed {seed}")
            begin = None if recipe.scratch else self.central("warm-up", language, seed)
            folder = self.work / "states" / f"{recipe.name}-{language}-{seed}-{digest(recipe)}"
            state = run_rounds(plan, folder, begin, told, save_every=5)
            weights, history = state.weights, state.history
        parts, task = self.parts(language, seed), self.task(language, seed)
        error = summary(scores(task, weights, [[each] for each in parts.tested]))["error"]
        users = [name for name in parts.users if parts.own.get(name)]
        measured = scores(task, weights, [parts.own[name] for name in users])
        own = {name: score.wrong / max(1, score.counted) for name, score in zip(users, measured, strict=True)}
        clients = [own.get(name) for name in parts.users]
        losses, effective = ([entry[name] for entry in history] for name in ("loss", "effective"))
        seconds = round(time.monotonic() - begun, 1)
        return Row(recipe.name, language, seed, error, clients, losses, effective, seconds)

    def population(self, recipe: Recipe, language: Language, seed: int) -> Spoken:
        """The clients of a federation: users, two of them, or ten silos, with what their speakers hold back."""
        parts = self.parts(language, seed)
        users, own = parts.users, parts.own
        together: Iterable[Sequence[str]] = [[name] for name in users]
        if recipe.holders != "users":
            named = {f"{name}-{place:06d}": each for name, all_ in users.items() for place, each in enumerate(all_)}
            items = items_of(named)
            split = cross_silo(items, SILOS, seed) if recipe.holders == "silos" else speakers_together(items, seed)
            together = [list(dict.fromkeys(named[place].source for place in places)) for places in split.values()]
        voices, held = (
            [[each for name in names for each in said.get(name, ())] for names in together] for said in (users, own)
        )
        return Spoken(voices, ALPHABETS[language], MASKS, held)

    def task(self, language: Language, seed: int) -> SpeechCTC:
        alphabet = ALPHABETS[language]
        return network(replace(self.scale.shape, tokens=alphabet.size), alphabet, seed)

    def central(self, holders: str, language: Language, seed: int) -> Arrays:
        """Trained in one place: on everything, on the warm-up speakers' speech, or on the rest after that."""

        def make() -> Arrays:
            parts = self.parts(language, seed)
            rest = [example for own in parts.users.values() for example in own]
            speech = {"everything": [*parts.warm_up, *rest], "warm-up": parts.warm_up, "rest": rest}[holders]
            begin = self.central("warm-up", language, seed) if holders == "rest" else None
            steps = max(1, round(self.scale.central.steps * (len(speech) / len(parts.warm_up))))
            plan, tell = replace(self.scale.central, steps=steps), partial(self.tell, f"central, {holders}, {language}")
            return train_centrally(self.task(language, seed), self._masked([speech], language), plan, seed, begin, tell)

        return keep_weights(self.work / "central" / f"{holders}-{language}-{seed}.safetensors", make)

    def _parts(self, language: Language, seed: int) -> Parts:
        crowd = self.crowd(language, seed)
        first, rest = warm_up_split(items_of(crowd.learned))
        silos: dict[str, list[str]] = {}
        for item in rest:
            silos.setdefault(item.speaker, []).append(item.id)
        train, test = local_tests({name: tuple(own) for name, own in silos.items()}, least=1, seed=seed)
        learned, said = crowd.learned, list(crowd.tested.values())
        users, own = ({name: [learned[each] for each in ids] for name, ids in part.items()} for part in (train, test))
        return Parts([learned[item.id] for item in first], users, own, said, list(crowd.held.values()))

    def crowd(self, language: Language, seed: int) -> Crowd:
        tell = partial(self.tell, f"speech, {language}, seed {seed}")
        return gather(language, self.scale.crowd, seed, self.speech, tell)

    def _masked(self, voices: Sequence[Sequence[Example]], language: Language) -> Spoken:
        return Spoken(voices, ALPHABETS[language], MASKS)
