"""What a training graph is fed of one utterance, checked once for every runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import LearningError

__all__ = ["check_parameter", "utterance_feeds"]

Float = NDArray[np.float32]


def utterance_feeds(
    architecture: Architecture,
    features: Float,
    hypotheses: Sequence[Sequence[int]],
    weights: ArrayLike,
    costs: ArrayLike | None,
    cost_scale: float,
) -> dict[str, NDArray[np.generic]]:
    """A graph's inputs besides parameters. F: frames; M: mel bins; N: hypotheses; U: tokens of the longest.

    Returns features [F, M] float32, tokens [N, U] int64 padded with 0, lengths [N] int64, weights, costs [N] float32
    and cost_scale [] float32. costs default to 0.
    Raises :class:`LearningError` that names the argument for a wrong shape, type, value or token.
    """
    count = len(hypotheses)
    if count == 0:
        raise LearningError("hypotheses: found none, expected at least one")
    feeds: dict[str, NDArray[np.generic]] = {"features": _features(architecture, features)}
    feeds["tokens"], feeds["lengths"] = _padded(architecture, hypotheses)
    feeds["weights"] = _vector("weights", weights, count)
    feeds["costs"] = _vector("costs", np.zeros(count) if costs is None else costs, count)
    if not np.isfinite(cost_scale):
        raise LearningError(f"cost_scale: found {cost_scale!r}, expected a finite number")
    feeds["cost_scale"] = np.asarray(cost_scale, np.float32)
    return feeds


def check_parameter(parameters: Mapping[str, Float], name: str, shape: tuple[int, ...]) -> Float:
    """The parameter of this name. Raises :class:`LearningError` where it is missing or of another shape or type."""
    value = parameters.get(name)
    if value is None or value.shape != shape or value.dtype != np.float32:
        found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
        raise LearningError(f"parameters: {name!r}: found {found}, expected float32 {list(shape)}")
    return value


def _features(architecture: Architecture, features: Float) -> Float:
    bins, least = architecture.mel_bins, architecture.subsampling_factor
    if features.ndim != 2 or features.shape[1] != bins or len(features) < least:
        raise LearningError(f"features: found shape {list(features.shape)}, expected [F, {bins}] with F >= {least}")
    if features.dtype != np.float32 or not np.isfinite(features).all():
        raise LearningError(f"features: found {features.dtype} or values not finite, expected finite float32")
    return features


def _padded(
    architecture: Architecture, hypotheses: Sequence[Sequence[int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = np.array([len(tokens) for tokens in hypotheses], np.int64)
    padded = np.zeros((len(hypotheses), int(lengths.max())), np.int64)
    for row, tokens in enumerate(hypotheses):
        padded[row, : len(tokens)] = tokens
        if len(tokens) and (min(tokens) < 1 or max(tokens) >= architecture.pieces):
            raise LearningError(
                f"hypotheses: entry {row} holds a token outside 1..{architecture.pieces - 1} (0 is blank)"
            )
    return padded, lengths


def _vector(name: str, values: ArrayLike, count: int) -> Float:
    vector = np.asarray(values, np.float32)
    if vector.shape != (count,) or not np.isfinite(vector).all():
        raise LearningError(f"{name}: found shape {list(vector.shape)}, expected [{count}] finite, one per hypothesis")
    return vector
