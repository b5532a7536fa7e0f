"""Which of an RNN-T's parameters local steps move, and which layers lie frozen beneath them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from device_sdk.bundle.architecture import Architecture

Subset = Literal["whole", "acoustic", "top", "joint", "adapters"]

SUBSETS: tuple[Subset, ...] = get_args(Subset)
"""whole: every parameter.
acoustic: encoder and its projection: how a voice sounds, not which words follow which. Better where users say ever new
things: a few steps on what was said last would make it likelier to be heard next.
top: the last encoder layer, the prediction network and the joiner, over int8 layers: half of the work.
joint: the joiner alone, over int8 networks: the least work.
adapters: factors of low rank beside every matrix of the LSTM layers and the joiner: what changes stays of low rank."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Layers that a subset's steps never change. encoder_layers: how many, from the lowest up. predictor: whether all
    of the prediction network is."""

    encoder_layers: int = 0
    predictor: bool = False

    def __bool__(self) -> bool:
        return self.encoder_layers > 0 or self.predictor

    def parameters(self, architecture: Architecture) -> tuple[str, ...]:
        """Names of what is frozen, in the canonical order."""
        stacks = tuple(f"encoder.{layer}." for layer in range(self.encoder_layers))
        stacks += ("predictor.",) if self.predictor else ()
        return tuple(name for name in architecture.parameter_shapes() if name.startswith(stacks))


def frozen(architecture: Architecture, subset: Subset) -> Frozen:
    """What runs in int8 beneath a subset. Every other layer is part of its training graph."""
    if subset == "top":
        return Frozen(architecture.encoder_layers - 1)
    return Frozen(architecture.encoder_layers, True) if subset == "joint" else Frozen()


def trainable(architecture: Architecture, subset: Subset) -> tuple[str, ...]:
    """The parameters that steps on a subset move, in the canonical order; for ``adapters`` the matrices that have
    factors (see :func:`factor_names`)."""
    shapes = architecture.parameter_shapes()
    match subset:
        case "acoustic":
            return tuple(name for name in shapes if name.startswith(("encoder.", "joiner.encoder.")))
        case "adapters":
            return tuple(name for name, shape in shapes.items() if len(shape) == 2 and name != "predictor.embedding")
    beneath = frozen(architecture, subset).parameters(architecture)
    return tuple(name for name in shapes if name not in beneath)


def factor_names(matrix: str) -> tuple[str, str]:
    """Names of the factors beside a matrix [out, in]: up [out, r] and down [r, in], whose product is added to it."""
    return f"{matrix}.up", f"{matrix}.down"


def training_file(subset: Subset) -> str:
    """Name of the subset's training graph in a bundle."""
    return "training.onnx" if subset == "whole" else f"training.{subset}.onnx"


def frozen_file(subset: Subset) -> str:
    """Name of the graph of the subset's frozen layers in a bundle."""
    return f"frozen.{subset}.int8.onnx"
