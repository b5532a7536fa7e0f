"""What a local step takes of memory, told before it is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.subsets import Subset, frozen, trainable
from device_sdk.learning.objectives import Objective
from device_sdk.learning.settings import LearningSettings

__all__ = ["affordable", "step_bytes"]

_STATES = 8
"""Values kept for a unit of an LSTM layer at a frame or token: four gates, two states, and their gradients in turn."""
_LATTICE_BYTES = 64
"""Of a node of the lattice: eight float64 values."""
_JOINT_FRAMES = 8
"""Frames that the joint runs over at a time."""
_JOINT_BYTES = 12
"""Of a hidden or output unit of the joint: its float32 value, its gradient, and one to work with."""
_COPIES = 5
"""Arrays as large as what is trained: gradients, those divided by their usual size, momentum, new weights, teacher."""
_MARGIN = 1.25


def step_bytes(architecture: Architecture, subset: Subset, frames: int, lengths: Sequence[int]) -> int:
    """Bytes that a step takes beyond the open session and the weights, as an upper estimate.

    frames: of features, before subsampling. lengths: [N] tokens of each hypothesis, N at least 1.
    """
    shapes, beneath = architecture.parameter_shapes(), frozen(architecture, subset)
    heard, said, hypotheses = frames // architecture.subsampling_factor, max(lengths) + 1, len(lengths)
    layers = architecture.encoder_layers - beneath.encoder_layers
    encoder = 4 * _STATES * heard * architecture.encoder_size * layers
    predictor = 4 * _STATES * hypotheses * said * architecture.predictor_size * architecture.predictor_layers
    joint = hypotheses * said * _JOINT_BYTES * _JOINT_FRAMES * (architecture.joiner_size + architecture.pieces)
    lattice = hypotheses * said * heard * _LATTICE_BYTES
    arrays = 4 * _COPIES * sum(math.prod(shapes[name]) for name in trainable(architecture, subset))
    return int(_MARGIN * (encoder + (0 if beneath.predictor else predictor) + joint + lattice + arrays))


def affordable(
    losses: Callable[[LearningSettings], Objective | str],
    architecture: Architecture,
    settings: LearningSettings,
    frames: int,
    budget_bytes: int | None,
) -> tuple[Objective | str, bool]:
    """(The loss over as many hypotheses as fit into ``budget_bytes``, whether some were left out for it).

    losses: the utterance's loss under these settings, or why there is none. None fits: why, instead of the loss.
    """
    for hypotheses in range(settings.hypotheses, 0, -1):
        loss = losses(replace(settings, hypotheses=hypotheses))
        if isinstance(loss, str) or budget_bytes is None:
            return loss, False
        lengths = [len(tokens) for tokens in loss.hypotheses]
        if step_bytes(architecture, settings.subset, frames, lengths) <= budget_bytes:
            return loss, hypotheses < settings.hypotheses
    return "its step does not fit into the memory allowed", False
