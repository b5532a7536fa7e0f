"""A wider network that begins as a narrower one that was trained (Chen et al. 2016, Net2Net), to be trained further."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture

_FORGET = 2
"""Place of the forget gate: gates are in the order i, o, f, c."""
_INPUTS, _AMONG = 0.7, 0.05
"""Spread of what new cells hear, beside that of the trained ones, and of what they hear of each other."""


def widened(parameters: Mapping[str, NDArray[Any]], architecture: Architecture, cells: int) -> dict[str, NDArray[Any]]:
    """Parameters of an encoder with ``cells`` in every layer, more than in those of ``architecture``. New cells hear
    what the trained ones hear, by random weights, and nobody hears them yet: the network says what it said."""
    size, more = architecture.encoder_size, cells - architecture.encoder_size
    random = np.random.default_rng([1, cells])

    def with_new_cells(weights: NDArray[Any]) -> NDArray[np.float32]:
        """[4 * size, x] to [4 * cells, x]."""
        gates = weights.astype(np.float32).reshape(4, size, -1)
        new = random.standard_normal((4, more, gates.shape[2])) * (_INPUTS * gates.std(axis=(1, 2), keepdims=True))
        return np.concatenate([gates, new.astype(np.float32)], axis=1).reshape(4 * cells, -1)

    def from_all_cells(weights: NDArray[Any]) -> NDArray[np.float32]:
        """[4 * cells, size] to [4 * cells, cells]."""
        found = np.zeros((4, cells, cells), np.float32)
        found[:, :, :size] = weights.reshape(4, cells, size)
        found[:, size:, size:] = random.normal(0.0, _AMONG, (4, more, more))
        return found.reshape(4 * cells, cells)

    found = dict(parameters)
    for layer in range(architecture.encoder_layers):
        name = f"encoder.{layer}"
        below, own = with_new_cells(parameters[f"{name}.W"]), with_new_cells(parameters[f"{name}.R"])
        bias = np.zeros((4, cells), np.float32)
        bias[:, :size] = parameters[f"{name}.B"].reshape(4, size)
        bias[_FORGET, size:] = 1.0  # open, as in a network that begins
        found |= {f"{name}.W": from_all_cells(below) if layer else below, f"{name}.R": from_all_cells(own)}
        found[f"{name}.B"] = bias.reshape(-1)
    found["joiner.encoder.weight"] = np.pad(parameters["joiner.encoder.weight"], ((0, 0), (0, more)))
    return found
