"""The shape of an RNN-T and the names its parameters have in every weights file, delta and registry entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol, get_args

from device_sdk.checks import check_interval, check_type
from device_sdk.wire.delta_codec import parts

BLANK = 0
LARGEST_LAYERS, LARGEST_SIZE = 64, 1 << 20  # far above any use; what a damaged manifest claims is not tried


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of an LSTM RNN-T (Rao et al. 2023, section 3). M: mel_bins; K: subsampling_factor (frames stacked into
    one); H: encoder_size; P: predictor_size; E: embedding_size; J: joiner_size; V: pieces, with blank 0."""

    encoder_layers: int
    encoder_size: int
    predictor_layers: int
    predictor_size: int
    embedding_size: int
    joiner_size: int
    pieces: int
    mel_bins: int = 64
    subsampling_factor: int = 3

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_type(f"architecture.{name}", getattr(self, name), int, "a whole number")
            largest = LARGEST_LAYERS if name.endswith("layers") else LARGEST_SIZE
            check_interval(f"architecture.{name}", getattr(self, name), f"[1, {largest}]")

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Trainable parameters, in the canonical order. LSTM layers are in ONNX layout: rows in gate order i, o, f, c,
        and one merged bias (input bias + recurrent bias). ``W`` [4H, input], ``R`` [4H, H], ``B`` [4H]."""
        shapes: dict[str, tuple[int, ...]] = {}
        width = self.mel_bins * self.subsampling_factor
        for layer in range(self.encoder_layers):
            shapes |= lstm_shapes(f"encoder.{layer}", width, self.encoder_size)
            width = self.encoder_size
        shapes["predictor.embedding"] = (self.pieces, self.embedding_size)
        width = self.embedding_size
        for layer in range(self.predictor_layers):
            shapes |= lstm_shapes(f"predictor.{layer}", width, self.predictor_size)
            width = self.predictor_size
        shapes["joiner.encoder.weight"] = (self.joiner_size, self.encoder_size)
        shapes["joiner.encoder.bias"] = (self.joiner_size,)
        shapes["joiner.predictor.weight"] = (self.joiner_size, self.predictor_size)
        shapes["joiner.output.weight"] = (self.pieces, self.joiner_size)
        shapes["joiner.output.bias"] = (self.pieces,)
        return shapes

    def constant_shapes(self) -> dict[str, tuple[int, ...]]:
        """What the weights file also holds but no step changes: normalized = (log-mel - mean) * scale."""
        return {"features.mean": (self.mel_bins,), "features.scale": (self.mel_bins,)}

    @property
    def activation(self) -> Literal["tanh"]:
        """Of the joiner."""
        return "tanh"

    def parameter_count(self) -> int:
        return sum(prod(shape) for shape in self.parameter_shapes().values())


def lstm_shapes(name: str, width: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.W": (4 * size, width), f"{name}.R": (4 * size, size), f"{name}.B": (4 * size,)}


PRESETS: dict[str, Architecture] = {
    "tiny": Architecture(1, 32, 1, 32, 32, 32, 64),
    "small": Architecture(2, 320, 1, 256, 256, 256, 256),
    "medium": Architecture(3, 384, 1, 256, 256, 256, 256),
    "large": Architecture(3, 480, 1, 256, 256, 256, 256),
    "bench": Architecture(2, 256, 1, 256, 256, 256, 128),
    "paper": Architecture(5, 1024, 2, 1024, 512, 512, 2500),
}


Subset = Literal["whole", "acoustic", "top", "joint", "adapters", "output", "norms", "input"]

SUBSETS: tuple[Subset, ...] = get_args(Subset)
"""whole: every parameter.
acoustic: encoder and its projection: how a voice sounds, not which words follow which. Better where users say ever new
things: a few steps on what was said last would make it likelier to be heard next.
top: the last encoder layer, the prediction network and the joiner, over int8 layers: half of the work.
joint: the joiner alone, over int8 networks: the least work.
adapters: factors of low rank beside every matrix of the LSTM layers and the joiner: what changes stays of low rank.
output: prediction network and joiner, over whatever encoder a bundle brings.
norms: biases, scales and whatever else is a vector, of an encoder that a bundle brings and of the rest.
input: the first layer of such an encoder: how a microphone and a room sound."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Layers that a subset's steps never change. encoder_layers: how many, the lowest; predictor: whether all of it."""

    encoder_layers: int = 0
    predictor: bool = False

    def __bool__(self) -> bool:
        return self.encoder_layers > 0 or self.predictor

    def parameters(self, architecture: Shaped) -> tuple[str, ...]:
        """Names of what is frozen, in the canonical order."""
        stacks = tuple(f"encoder.{layer}." for layer in range(self.encoder_layers))
        stacks += ("predictor.",) if self.predictor else ()
        return tuple(name for name in architecture.parameter_shapes() if name.startswith(stacks))


class Shaped(Protocol):
    """What has parameters of these names and shapes."""

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]: ...


def frozen_part(architecture: Shaped, subset: Subset) -> Frozen:
    """What runs in int8 beneath a subset. Every other layer is part of its training graph."""
    if not isinstance(architecture, Architecture):
        return Frozen()
    if subset == "top":
        return Frozen(architecture.encoder_layers - 1)
    return Frozen(architecture.encoder_layers, True) if subset == "joint" else Frozen()


def trainable(architecture: Shaped, subset: Subset) -> tuple[str, ...]:
    """The parameters that steps on a subset move, in canonical order; for ``adapters`` the matrices with factors."""
    shapes = architecture.parameter_shapes()
    if subset == "input":
        return _first_layer(shapes)
    beneath = frozen_part(architecture, subset).parameters(architecture)
    return tuple(name for name in parts(shapes, subset) if name not in beneath)


def _first_layer(shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The first weight of two axes or more, and its bias where one follows: weights stand as they are first used."""
    names = list(shapes)
    at = next(place for place, name in enumerate(names) if len(shapes[name]) > 1)
    following = names[at + 1 : at + 2]
    return names[at], *(name for name in following if shapes[name] == shapes[names[at]][:1])


def factor_names(matrix: str) -> tuple[str, str]:
    """Names of the factors beside a matrix [out, in]: up [out, r] and down [r, in], whose product is added to it."""
    return f"{matrix}.up", f"{matrix}.down"


def training_file(subset: Subset) -> str:
    """Name of the subset's training graph in a bundle."""
    return "training.onnx" if subset == "whole" else f"training.{subset}.onnx"


FORWARD_FILE = "encoder.forward.onnx"
"""The graph of an encoder that a bundle brings, its weights as inputs."""


def backward_file(subset: Subset) -> str:
    """Name of the graph of such an encoder's gradients in a bundle."""
    return f"encoder.{subset}.backward.onnx"


def frozen_file(subset: Subset) -> str:
    """Name of the graph of the subset's frozen layers in a bundle."""
    return f"frozen.{subset}.int8.onnx"
