"""Going on from a trained RNN-T: more speech of the same kind, a narrower domain, another language.

V: pieces; E: embedding size; J: joiner size."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import BLANK, Architecture
from device_sdk.bundle.weights import read as read_weights
from device_sdk.errors import BundleError
from export.networks.stateless import StatelessShape

_OF_PIECES = ("predictor.embedding", "joiner.output.weight", "joiner.output.bias")


@dataclass(frozen=True, slots=True)
class Start:
    """What a run goes on from. parameters: of the trained network, constants too, by public name. fresh_pieces: the
    tokenizer is a new one, of any size, so that what belongs to pieces (the embedding [V, E] and the joint's output [V,
    J], [V]) begins anew and the encoder is first trained by CTC."""

    parameters: Mapping[str, NDArray[Any]]
    fresh_pieces: bool = False

    def parameters_for(self, architecture: Architecture | StatelessShape, seed: int) -> Mapping[str, NDArray[Any]]:
        """The parameters to begin with. Fresh rows are as large as the trained ones; blank keeps its own. Raises
        BundleError where one that is needed is missing."""
        if not self.fresh_pieces or isinstance(architecture, StatelessShape):
            return self.parameters
        shapes, generator = architecture.parameter_shapes(), np.random.default_rng([seed, 0xF5])
        fresh = dict(self.parameters)
        for name in _OF_PIECES:
            if name not in fresh:
                raise BundleError(f"weights: {name} is missing; expected the parameters of an RNN-T")
            old = np.asarray(fresh[name], np.float32)
            rows = generator.normal(0.0, old[1:].std(0).mean(), shapes[name]) + old[1:].mean()
            fresh[name] = rows.astype(np.float32)
            if fresh[name].shape[1:] == old.shape[1:]:
                fresh[name][BLANK] = old[BLANK]
        return fresh


def read_start(path: Path) -> tuple[Mapping[str, NDArray[Any]], bytes]:
    """Parameters and tokenizer of a bundle, or of the folder of a run. Raises BundleError for what is neither."""
    if (path / "weights.safetensors").is_file() and not (path / "manifest.json").is_file():
        source = path / "weights.safetensors"
        if not (path / "tokenizer.model").is_file():
            raise BundleError(f"{path}: has weights.safetensors but no tokenizer.model; expected the folder of a run")
        return read_weights(source.read_bytes(), str(source)), (path / "tokenizer.model").read_bytes()
    bundle = Bundle.open(path)
    return bundle.weights, bundle.file("tokenizer.model").read_bytes()
