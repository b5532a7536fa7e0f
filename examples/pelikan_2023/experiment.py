"""Rows of Pelikan et al. 2023's tables: every recipe under every seed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from examples.cohorts import MASKS, Central, Spoken, network, scores, train_centrally
from examples.pelikan_2023.imbalance import CLEAN, Depth, energy_shares, imbalance
from examples.pelikan_2023.recipe import BASE, Recipe
from examples.pelikan_2023.speech import Speech, SpokenScale, dictate, shuffle
from examples.runner import digest, keep, keep_weights, rates
from export.networks.ctc_transformer import ALPHABETS, CTCTransformerShape
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.rounds import Diverged, engine, parameters, run_rounds
from server.lab.simulation.engine.settings import EngineSettings, Way
from server.lab.simulation.engine.state import spent
from server.lab.simulation.engine.tasks import SpeechCTC, summary
from server.lab.simulation.progress import Tell

# The convolution has a small share of the values, as in the paper's network; over 64 mel bins it would have a third.
SMALL = CTCTransformerShape(mel_bins=16, size=48, feed_forward=128, layers=4, heads=2, dropout=0.0, layer_drop=0.0)
DATA = 1
"""Seed of speech and of seed models, which all rows share as in the paper; seeds of rows decide cohorts and masks."""
CENTRAL = 18
"""Times the steps of a seed model that rows in one place take: as many clips as in 60 rounds of 64 clients."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. steps, batch: of central training of the seed model, with Adam up to ``peak``, a high
    one, since weights that have grown leave LayerNorm a larger share of deltas, as in the paper's; rounds: of a recipe
    and of its schedule, times so many. cohort: of recipes that have the usual one. way: how clients are computed."""

    spoken: SpokenScale = field(default_factory=SpokenScale)
    shape: CTCTransformerShape = SMALL
    steps: int = 400
    batch: int = 16
    peak: float = 1e-2
    rounds: float = 1.0
    cohort: int = BASE.cohort
    way: Way = "auto"

    @classmethod
    def full(cls) -> Scale:
        """The paper's network, cohort and 2,000 rounds, and more voices than most corpora have: for a GPU."""
        return cls(
            spoken=SpokenScale(clients=20_000, server=400, tested=100, each=20, digits=6, bins=64),
            shape=CTCTransformerShape(mel_bins=64),
            steps=40_000,
            batch=64,
            peak=5e-4,
            rounds=33.4,
            cohort=1024,
            way="loop",
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe under one seed. error: word error rate on voices that nobody learned from; clients: of clients' own
    sentences, see :func:`server.lab.simulation.engine.tasks.summary`; losses: of rounds; layers: mean norms of
    deltas by parameter, over all rounds; privacy: what it cost. diverged: the round whose mean delta was no number, if
    any; the rest is then of the rounds before it."""

    name: str
    seed: int
    error: float
    clients: Mapping[str, float]
    losses: Sequence[float]
    layers: Mapping[str, float]
    privacy: Mapping[str, Any]
    seconds: float
    diverged: int | None = None


class Experiment:
    """Owns the work folder: speech, seed models, states of runs and finished rows; makes what is missing."""

    def __init__(self, work: Path, scale: Scale, tell: Tell = lambda *_: None) -> None:
        torch.set_num_threads(1)
        self.work, self.scale, self.tell = work / digest(scale), scale, tell
        make = partial(dictate, scale.spoken, DATA, self.work / "speech", partial(tell, "speech"))
        self.speech: Callable[[], Speech] = lru_cache(maxsize=1)(make)

    def row(self, recipe: Recipe, seed: int) -> Row:
        """A finished row, or a run from where it was stopped."""
        return keep(self.work / "rows", (recipe.name, seed), recipe, Row, lambda: self._run(recipe, seed))

    def _run(self, recipe: Recipe, seed: int) -> Row:
        begun = time.monotonic()
        speech, task = self.speech(), self.task(recipe.norm)
        values = sum(parameter.numel() for parameter in task.network.parameters())
        given = {"seed": seed, "way": self.scale.way}
        settings = _scaled(recipe, values, self.scale).model_copy(update=given)
        scratch = recipe.begin.endswith("scratch")
        weights = parameters(task) if scratch else self.seed_model(recipe.norm, recipe.seed_share)
        voices = shuffle(speech.clients, seed) if recipe.iid else speech.clients
        history: Sequence[Mapping[str, Any]] = ()
        privacy: Mapping[str, Any] = {"epsilon": 0.0, "reports": 0}
        diverged: int | None = None
        masks, alphabet = MASKS if recipe.masks else None, ALPHABETS["en"]
        told = partial(self.tell, f"{recipe.name}, seed {seed}")
        if recipe.begin.startswith("central"):
            together = Spoken([[e for voice in speech.clients for e in voice]], alphabet, masks)
            plan = Central(CENTRAL * self.scale.steps, self.scale.batch, self.scale.peak)
            weights = train_centrally(task, together, plan, seed, weights, told)
            privacy = {"epsilon": "Infinity", "reports": 0}
        elif recipe.begin != "only":
            remembered = Spoken([[e for voice in speech.server for e in voice]], alphabet, masks)
            rounds = engine(settings, task, Spoken(voices, alphabet, masks), remembered)
            folder = self.work / "states" / f"{recipe.name}-{seed}-{digest(recipe)}"
            try:
                state = run_rounds(rounds, folder, weights, told, save_every=10)
            except Diverged as error:
                state, diverged = error.state, error.state.number + 1
            weights, history, privacy = state.weights, state.history, spent(settings, state)
        groups = speech.tested, speech.clients[: self.scale.spoken.tested]
        tested, own = (summary(scores(task, weights, group)) for group in groups)
        layers = {name: float(np.mean([entry["layers"][name] for entry in history])) for name in weights if history}
        losses, seconds = [entry["loss"] for entry in history], round(time.monotonic() - begun, 1)
        return Row(recipe.name, seed, tested["error"], own, losses, layers, privacy, seconds, diverged)

    def task(self, norm: str, layers: int | None = None) -> SpeechCTC:
        """layers: of the network, the scale's by default."""
        shape = replace(self.scale.shape, norm=norm, layers=layers or self.scale.shape.layers)  # type: ignore[arg-type]
        return network(shape, ALPHABETS["en"], DATA)

    def seed_model(self, norm: str, share: float, layers: int | None = None) -> Arrays:
        """Trained on the server's voices alone for a share of the steps."""
        deep = layers or self.scale.shape.layers

        def make() -> Arrays:
            every = [example for voice in self.speech().server for example in voice]
            plan = Central(max(1, round(self.scale.steps * share)), self.scale.batch, self.scale.peak)
            speech, tell = Spoken([every], ALPHABETS["en"], MASKS), partial(self.tell, f"seed model, {norm}, {deep}")
            return train_centrally(self.task(norm, deep), speech, plan, DATA, tell=tell)

        return keep_weights(self.work / "seeds" / f"{norm}-{share:g}-{deep}.safetensors", make)

    def measured(self, rows: Sequence[Row]) -> tuple[dict[str, dict[str, Any]], float]:
        """(word errors by row name, imbalance of the deltas of the row without noise that is clipped as a whole, NaN
        without it): what the entry test goes by."""
        sizes = {name: parameter.numel() for name, parameter in self.task("pre").network.named_parameters()}
        names = dict.fromkeys(row.name for row in rows)
        errors = {name: rates({row.seed: row.error for row in rows if row.name == name}) for name in names}
        found = [imbalance(row.layers, sizes) for row in rows if row.name == CLEAN]
        return errors, float(np.mean(found)) if found else float("nan")

    def depth(self, layers: int) -> Depth:
        """What one round of clients sends where the network is so deep."""

        def make() -> Depth:
            task, weights = self.task("pre", layers), self.seed_model("pre", 1.0, layers)
            speech = self.speech()
            settings = BASE.model_copy(update={"rounds": 1, "cohort": min(BASE.cohort, len(speech.clients))})
            plan = engine(settings, task, Spoken(speech.clients, ALPHABETS["en"], MASKS))
            (figures,) = run_rounds(plan, None, weights).history
            sizes = {name: parameter.numel() for name, parameter in task.network.named_parameters()}
            norms, tested = figures["layers"], summary(scores(task, weights, speech.tested))
            measured, shares = imbalance(norms, sizes), energy_shares(norms)
            return Depth(layers, self.scale.shape.size, sum(sizes.values()), measured, shares, tested["error"])

        return keep(self.work / "depths", (layers,), BASE, Depth, make)


def _scaled(recipe: Recipe, values: int, scale: Scale) -> EngineSettings:
    """A recipe's federation with the scale's cohort and so many times the rounds, over which the server's rate moves as
    it did; and with the recipe's noise. values: parameters of the network."""
    if recipe.engine.cohort == BASE.cohort:
        recipe = recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"cohort": scale.cohort})})
    settings, times = recipe.noised(values), scale.rounds
    schedule = settings.optimizer.schedule
    places = {name: round(getattr(schedule, name) * times) for name in ("warmup", "start")}
    places["transition"] = max(1, round(schedule.transition * times))
    optimizer = settings.optimizer.model_copy(update={"schedule": schedule.model_copy(update=places)})
    return settings.model_copy(update={"rounds": max(1, round(settings.rounds * times)), "optimizer": optimizer})
