"""Rows of Pelikan et al. 2023's tables: every recipe under every seed, kept on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from device_sdk.commands.output import write_file
from device_sdk.errors import DataError
from export.networks.alphabet import ALPHABETS
from export.networks.ctc_transformer import CTCTransformer, CTCTransformerShape
from server.lab.simulation.dictation.recipes import Recipe
from server.lab.simulation.dictation.speech import Speech, Spoken, SpokenScale, dictated, shuffled
from server.lab.simulation.engine.central import Central, learned_centrally
from server.lab.simulation.engine.measures import evaluate, summary
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.release import spent
from server.lab.simulation.engine.rounds import Diverged, Spread, engine, parameters
from server.lab.simulation.engine.run import run
from server.lab.simulation.engine.settings import EngineSettings
from server.lab.simulation.engine.tasks import SpeechCTC
from server.lab.simulation.progress import Tell
from server.lab.training.augmentation import Augmentation

__all__ = ["Experiment", "Row", "Scale"]

# The convolution has a small share of the values, as in the paper's network; over 64 mel bins it would have a third.
SMALL = CTCTransformerShape(mel_bins=16, size=48, feed_forward=128, layers=4, heads=2, dropout=0.0, layer_drop=0.0)
DATA = 1
"""Of speech and of seed models, which all rows share, as the paper's do: seeds of rows decide cohorts and masks."""
MASKS = Augmentation(time_masks=2, time_width=12, bin_masks=1, bin_width=3)


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is. shape: sizes of the network; steps, batch: of central training of the seed model, with
    Adam up to ``peak``, a high one, since weights that have grown leave LayerNorm a larger share of deltas, as in the
    paper's; rounds: of a recipe and of its schedule, times so many."""

    spoken: SpokenScale = field(default_factory=SpokenScale)
    shape: CTCTransformerShape = SMALL
    steps: int = 400
    batch: int = 16
    peak: float = 1e-2
    rounds: float = 1.0

    @classmethod
    def full(cls) -> Scale:
        """The paper's network but for its depth, more voices than most corpora have, and 2,000 rounds: for a GPU."""
        return cls(
            spoken=SpokenScale(clients=20_000, server=400, tested=100, each=20, digits=6, bins=64),
            shape=CTCTransformerShape(mel_bins=64, layers=12),
            steps=40_000,
            batch=64,
            peak=5e-4,
            rounds=33.4,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One recipe under one seed. error: word error rate on voices that nobody learned from; clients: of clients' own
    sentences, see :func:`server.lab.simulation.engine.measures.summary`; losses: of rounds; layers: mean norms of
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

    def __init__(
        self,
        work: Path,
        scale: Scale,
        tell: Tell = lambda *_: None,
        threads: int = 1,
        spread: Spread | None = None,
    ) -> None:
        """tell: progress (what, done, total). spread: who computes rounds; None is this process."""
        torch.set_num_threads(threads)
        self.spread = spread
        digest = sha256(json.dumps(asdict(scale)).encode()).hexdigest()[:8]
        self.work, self.scale, self.tell = work / digest, scale, tell
        self.speech = lru_cache(maxsize=1)(self._speech)

    def row(self, recipe: Recipe, seed: int) -> Row:
        """A finished row, or a run from where it was stopped."""
        path = self.work / "rows" / f"{recipe.name.replace(' ', '-').replace('/', '-')}-{seed}.json"
        if path.exists():
            return _read(path)
        begun = time.monotonic()
        settings = _scaled(recipe.engine, self.scale.rounds).model_copy(update={"seed": seed})
        speech, task = self.speech(DATA), self.task(recipe.norm, DATA)
        weights = parameters(task) if recipe.begin == "scratch" else self.seed_model(recipe.norm, recipe.seed_share)
        voices = shuffled(speech.clients, seed) if recipe.iid else speech.clients
        history: Sequence[Mapping[str, Any]] = ()
        privacy: Mapping[str, Any] = {"epsilon": 0.0, "reports": 0}
        diverged: int | None = None
        if recipe.begin != "only":
            masks = MASKS if recipe.masks else None
            remembered = Spoken([[e for voice in speech.server for e in voice]], ALPHABETS["en"], masks)
            plan = engine(settings, task, Spoken(voices, ALPHABETS["en"], masks), remembered, self.spread)

            def watch(state: Any) -> None:
                self.tell(f"{recipe.name}, seed {seed}", state.number, settings.rounds)

            try:
                state = run(plan, path.with_suffix(""), weights, watch, save_every=10)
            except Diverged as error:
                state, diverged = error.state, error.state.number + 1
            weights, history, privacy = state.weights, state.history, spent(settings, state)
        tested, own = (
            summary(evaluate(task, _tensors(weights), Spoken(group, ALPHABETS["en"]), range(len(group))))
            for group in (speech.tested, speech.clients[: self.scale.spoken.tested])
        )
        layers = {name: float(np.mean([entry["layers"][name] for entry in history])) for name in weights if history}
        losses = [entry["loss"] for entry in history]
        seconds = round(time.monotonic() - begun, 1)
        row = Row(recipe.name, seed, tested["error"], own, losses, layers, privacy, seconds, diverged)
        write_file(path, json.dumps(asdict(row)), folders=True)
        return row

    def task(self, norm: str, seed: int) -> SpeechCTC:
        """The network with the initial weights of a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            shape = CTCTransformerShape(**(self.scale.shape.to_mapping() | {"norm": norm}))
            return SpeechCTC(CTCTransformer(shape), ALPHABETS["en"])

    def seed_model(self, norm: str, share: float) -> Arrays:
        """Trained on the server's voices alone, by Adam with a cosine to zero."""
        path = self.work / "seeds" / f"{norm}-{share:g}.safetensors"
        if path.exists():
            return load_file(path)
        every = [example for voice in self.speech(DATA).server for example in voice]
        plan = Central(max(1, round(self.scale.steps * share)), self.scale.batch, self.scale.peak)
        found = learned_centrally(
            self.task(norm, DATA),
            Spoken([every], ALPHABETS["en"], MASKS),
            plan,
            DATA,
            tell=lambda done, total: self.tell(f"seed model, {norm}", done, total),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(found, path)
        return found

    def _speech(self, seed: int) -> Speech:
        told: Callable[[int, int], None] = lambda done, total: self.tell(f"speech, seed {seed}", done, total)  # noqa: E731
        return dictated(self.scale.spoken, seed, self.work / "speech", told)


def _scaled(settings: EngineSettings, times: float) -> EngineSettings:
    """With so many times the rounds, over which the server's rate moves as it did."""
    schedule = settings.optimizer.schedule
    places = {name: round(getattr(schedule, name) * times) for name in ("warmup", "start")}
    places["transition"] = max(1, round(schedule.transition * times))
    optimizer = settings.optimizer.model_copy(update={"schedule": schedule.model_copy(update=places)})
    return settings.model_copy(update={"rounds": max(1, round(settings.rounds * times)), "optimizer": optimizer})


def _tensors(weights: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(values) for name, values in weights.items()}


def _read(path: Path) -> Row:
    try:
        return Row(**json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: not a finished row ({error!r}); delete it to have it run again") from error
