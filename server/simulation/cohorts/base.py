"""The base model: the packaged one, trained further on general sentences by base voices alone.

The packaged model has heard neither the requests nor a voice of devices or tests, and neither does its training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import PRESETS
from device_sdk.errors import ConfigurationError
from server.corpora.acoustics import GENTLE
from server.simulation.cohorts.domains import general, read_requests
from server.training.data import Example
from server.training.rnnt import Recipe, train_rnnt
from server.training.speech import Mixture
from server.training.trainer import Budget

__all__ = ["train_base"]

_TURNS = 4000
"""Distinct turns of meetings among its sentences, where that is more than the general domain has itself: a base that
knows few sentences by heart is sure of them whatever it hears, and so are its labels."""
_SCENES = replace(GENTLE, speed=(0.92, 1.1), edges_seconds=(0.1, 0.4))
_SHARD, _SHARD_A_MINUTE = 3000, 500  # utterances made at a time, and so that a short run does not make them for a long


def train_base(
    data: Path,
    bundle: Bundle,
    out: Path,
    minutes: float,
    longest: int,
    turns: int,
    watched: Sequence[Example],
    threads: int = 1,
) -> Mapping[str, NDArray[np.float32]]:
    """The weights, which begin with the bundle's and are kept in ``out``; every base voice there is takes part.

    A run that is finished is not run again, one that was stopped goes on from its checkpoint. minutes: of training, the
    making of speech not counted. longest, turns: of the general domain. watched: the blank is calibrated on those whose
    source ends with ``.development``.
    """
    if not _finished(out):
        domain = general(data, longest, max(turns, _TURNS), unsaid=read_requests(data / "slurp" / "devel.jsonl"))
        mixture = Mixture(
            sentences=tuple(sentence.text for sentence in domain.sentences["learn"]),
            intents={},
            sentences_share=1.0,
            recorded=0.0,
            narrow=0.0,
            scenes=_SCENES,
        )
        recipe = Recipe(
            preset=_preset(bundle),
            budget=Budget(minutes=minutes),
            peak=1.5e-3,
            helper=0.0,
            augment_share=0.0,
            made_augmented=0.3,
            dropout=0.05,
            average=0.998,
            shard=max(40, min(_SHARD, round(_SHARD_A_MINUTE * minutes))),
            window=4,
            batch=40,
            seconds=120.0,
            threads=threads,
        )
        train_rnnt(recipe, mixture, bundle.file("tokenizer.model").read_bytes(), out, watched, begin=bundle.weights)
    return load_file(out / "weights.safetensors")


def _preset(bundle: Bundle) -> str:
    for name, architecture in PRESETS.items():
        if architecture == bundle.architecture:
            return name
    raise ConfigurationError(
        f"bundle: found {bundle.architecture}, expected one of the presets {', '.join(PRESETS)}; give --base instead"
    )


def _finished(folder: Path) -> bool:
    """Whether a run has written its result, which it does at its end (and, without the blank's bias, on the way)."""
    path = folder / "training.json"
    return path.exists() and "blank_lowered_by" in (json.loads(path.read_text("utf-8"))["result"] or {})
