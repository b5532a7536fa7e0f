"""Where weights stand in programs: XNNPACK packs them when a program is loaded, so until then they can be exchanged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.executorch.manifest import REMEDY

__all__ = ["program_constants", "with_constants"]

Float = NDArray[np.float32]
Constants = Mapping[str, Float]

_GATES = {"i": 0, "f": 2, "g": 3, "o": 1}
"""Each gate's block among the rows i, o, f, c of W, R and B."""


def program_constants(sizes: Architecture, weights: Mapping[str, Float]) -> dict[str, dict[str, Float]]:
    """Program -> constant -> float32 values, made of parameters and constants by their public names.

    ``NAME.LAYER.GATE.weight`` [H, D + H] is the gate's block of W beside that of R: one map of input and state.
    """
    plain = {
        "encoder.pte": ("features.mean", "features.scale", "joiner.encoder.weight", "joiner.encoder.bias"),
        "predictor.pte": ("predictor.embedding", "joiner.predictor.weight"),
        "joiner.pte": ("joiner.output.weight", "joiner.output.bias"),
    }
    found = {program: {name: weights[name] for name in names} for program, names in plain.items()}
    for program, name, layers in (
        ("encoder.pte", "encoder", sizes.encoder_layers),
        ("predictor.pte", "predictor", sizes.predictor_layers),
    ):
        for layer in range(layers):
            w, r, b = (weights[f"{name}.{layer}.{part}"] for part in "WRB")
            size = r.shape[1]
            for gate, block in _GATES.items():
                rows = slice(block * size, (block + 1) * size)
                found[program][f"{name}.{layer}.{gate}.weight"] = np.concatenate([w[rows], r[rows]], axis=1)
                found[program][f"{name}.{layer}.{gate}.bias"] = b[rows]
    return found


def with_constants(program: bytes, places: Mapping[str, int], constants: Constants, source: str) -> bytes:
    """The program with these constants at their places. Raises :class:`BundleError` for places that cannot be."""
    if places.keys() != constants.keys():
        wrong = sorted(places.keys() ^ constants.keys())[0]
        raise BundleError(f"{source}: constants: {wrong!r} is missing or not the architecture's; {REMEDY}")
    content, end = bytearray(program), 0
    for name, begin in sorted(places.items(), key=lambda place: place[1]):
        values = constants[name].tobytes()
        if begin < end or begin + len(values) > len(content):
            raise BundleError(
                f"{source}: constants: {name!r} is said to be at bytes {begin} to {begin + len(values)} of "
                f"{len(content)}, behind {end}; {REMEDY}"
            )
        end = begin + len(values)
        content[begin:end] = values
    return bytes(content)
