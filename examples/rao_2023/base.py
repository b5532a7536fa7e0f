"""The base model: the packaged one, or a new one, trained on general sentences by base voices alone, in stages.

The packaged model has heard neither the requests nor a voice of devices or tests, and neither does a stage."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import PRESETS, Architecture, Shaped
from device_sdk.bundle.bundle import Tokenizer
from device_sdk.errors import ConfigurationError
from examples.rao_2023.domains import QUIET, Domain, general, people
from server.lab.corpora.acoustics import GENTLE, Ranges
from server.lab.training.data import Example
from server.lab.training.pieces import train_pieces
from server.lab.training.rnnt import Recipe, train_rnnt
from server.lab.training.speech import Mixture
from server.lab.training.trainer import Budget

Weights = Mapping[str, NDArray[np.float32]]

_SHARD_A_MINUTE = 500  # utterances, so that a short run does not make speech for a long one


@dataclass(frozen=True)
class Start:
    """What a base model grows from. pieces: of its tokenizer, a SentencePiece model. weights: parameters and constants
    to go on from; None begins anew."""

    architecture: Architecture
    pieces: bytes
    weights: Weights | None

    @classmethod
    def of(cls, bundle: Bundle) -> Start:
        """A bundle's network. Raises BundleError for another encoder than an LSTM."""
        return cls(bundle.lstm, bundle.file("tokenizer.model").read_bytes(), bundle.weights)

    @classmethod
    def untrained(cls, preset: str, sentences: Iterable[str]) -> Start:
        """A new network of a preset with pieces of these sentences. Raises ConfigurationError where these are too few
        for its pieces."""
        architecture = PRESETS[preset]
        return cls(architecture, train_pieces(sentences, architecture.pieces), None)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.pieces)


@dataclass(frozen=True, slots=True)
class BaseStage:
    """share: of the training time. turns: distinct turns of meetings among its sentences, where that is more than the
    general domain has itself. scenes: where they are said. people: how many people of the general domain say them; 0
    for every base voice there is. changed: share of the utterances whose features are changed. shard: utterances made
    at a time; window: shards in an epoch."""

    share: float
    turns: int
    scenes: Ranges
    people: int
    changed: float
    shard: int
    window: int


STAGES = (
    BaseStage(
        0.36, 4000, replace(GENTLE, speed=(0.92, 1.1), edges_seconds=(0.1, 0.4)), people=0, changed=0.3,
        shard=3000, window=4,
    ),
    BaseStage(0.12, 2500, replace(QUIET, speed=(0.95, 1.05)), people=600, changed=0.15, shard=2500, window=5),
    BaseStage(0.52, 0, replace(QUIET, speed=(0.95, 1.05)), people=600, changed=0.1, shard=2500, window=8),
)  # fmt: skip
"""From many sentences, voices and rooms to the domain itself: of 40 minutes on one core, 14, 5 and 21."""


def train_base(
    data: Path,
    start: Start,
    out: Path,
    minutes: float,
    longest: int,
    turns: int,
    watched: Sequence[Example],
    stages: Sequence[BaseStage] = STAGES,
) -> Weights:
    """The weights after all stages, each in a numbered folder of ``out`` and begun with those of the one before; the
    first one of a new network by CTC. A stage that is finished is not run again, one that was stopped goes on from its
    checkpoint. minutes: of training in all, the making of speech not counted. longest, turns: of the general domain.
    watched: the blank is calibrated on those whose source ends with ``.development``."""
    weights = start.weights
    for number, stage in enumerate(stages, 1):
        folder = out / f"stage-{number}"
        if not _is_finished(folder):
            share = minutes * stage.share
            shard = max(40, min(stage.shard, round(_SHARD_A_MINUTE * share)))
            given = {"budget": Budget(minutes=share), "made_augmented": stage.changed, "window": stage.window}
            recipe_of = first_recipe if weights is None else further_recipe
            recipe = recipe_of(start.architecture, shard=shard, **given)
            domain = general(data, longest, max(turns, stage.turns))
            sentences = [sentence.text for sentence in domain.sentences["learn"]]
            mixture = spoken_by(domain, stage.people, sentences, stage.scenes)
            train_rnnt(recipe, mixture, start.pieces, folder, watched, begin=weights)
        weights = load_file(folder / "weights.safetensors")
    assert weights is not None  # there are stages
    return weights


def first_recipe(architecture: Shaped, **given: Any) -> Recipe:
    """To train a new network with made speech. ConfigurationError: its architecture has no preset."""
    preset = next((name for name, known in PRESETS.items() if known == architecture), None)
    if preset is None:
        known = ", ".join(PRESETS)
        raise ConfigurationError(f"bundle: expected one of the architectures {known}; give --base instead")
    return Recipe(preset, batch=40, seconds=120.0, threads=1, **given)


def further_recipe(architecture: Shaped, **given: Any) -> Recipe:
    """To go on from trained weights with made speech. ConfigurationError: the architecture has no preset."""
    usual: dict[str, Any] = {"peak": 1.5e-3, "helper": 0.0, "augment_share": 0.0, "dropout": 0.05, "average": 0.998}
    return first_recipe(architecture, **usual, **given)


def spoken_by(domain: Domain, count: int, sentences: Iterable[str], scenes: Ranges) -> Mixture:
    """The sentences, said by ``count`` voices of the stage ``learn``; 0 for every base voice there is."""
    voices = tuple(person.voice for person in people(domain, "learn", count, np.random.default_rng(0)))
    shares: dict[str, Any] = {"intents": {}, "sentences_share": 1.0, "recorded": 0.0}
    return Mixture(tuple(sentences), scenes=scenes, voices=voices, **shares)


def _is_finished(folder: Path) -> bool:
    """Whether a run has written its result, which it does at its end, and on the way without saying so."""
    path = folder / "training.json"
    return path.exists() and "finished" in (json.loads(path.read_text("utf-8"))["result"] or {})
