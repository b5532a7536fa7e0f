"""Gradients on the device: the bundle's training graph on plain onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.bundle import Bundle
from device_sdk.errors import BundleError, LearningError
from device_sdk.runtimes.onnxruntime import open_session, run

__all__ = ["Gradients", "TrainingSession"]

GRADIENT = "gradient."

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one pass over one utterance gives. N: hypotheses.

    negative_log_likelihoods: [N] float32, nats. expected_cost: E[M] under softmax(-NLL), in units of the costs.
    gradients: parameter name -> float32 array of the parameter's shape.
    """

    negative_log_likelihoods: Float
    expected_cost: float
    gradients: Mapping[str, Float]


class TrainingSession:
    """The training graph, loaded once; every run takes the parameters, so a step needs no new session.

    Not for use by several threads at once.
    """

    def __init__(
        self,
        bundle: Bundle | None = None,
        threads: int = 1,
        *,
        graph: bytes = b"",
        architecture: Architecture | None = None,
    ) -> None:
        """bundle: whose ``training.onnx`` to run; or graph and architecture, for a graph with fewer gradients.

        Raises :class:`BundleError` where the graph is damaged or of another architecture.
        """
        if bundle is not None:
            path = bundle.file("training.onnx")
            graph, architecture, source = path.read_bytes(), bundle.architecture, str(path)
        elif architecture is not None:
            source = "training graph"
        else:
            raise ValueError("TrainingSession needs a bundle, or a graph with its architecture")
        self.architecture: Architecture = architecture
        self._session = open_session(graph, source, architecture=architecture, threads=threads, arena=True)
        self._outputs = [output.name for output in self._session.get_outputs()]
        if not {"negative_log_likelihoods", "expected_cost"} <= set(self._outputs) or not set(self.trainable) <= set(
            architecture.parameter_shapes()
        ):
            raise BundleError(f"{source}: has outputs {self._outputs}, expected losses and gradients; export it again")
        self._shapes = architecture.parameter_shapes() | architecture.constant_shapes()

    @property
    def trainable(self) -> tuple[str, ...]:
        """Parameters that the graph returns gradients for, in the canonical order."""
        return tuple(name.removeprefix(GRADIENT) for name in self._outputs if name.startswith(GRADIENT))

    def run(
        self,
        parameters: Mapping[str, Float],
        features: Float,
        hypotheses: Sequence[Sequence[int]],
        weights: ArrayLike,
        costs: ArrayLike | None = None,
        cost_scale: float = 0.0,
    ) -> Gradients:
        """d(sum_i weights_i NLL_i + cost_scale * E[M]) by every trainable parameter (paper 001, eq. 1).

        F: frames; M: mel bins; N: hypotheses.
        parameters: parameters and constants by name, float32. features: [F, M] float32 raw log-mel, F at least the
        subsampling factor (left-over frames are dropped). hypotheses: N token lists without blank; one may be empty.
        weights, costs: [N]; costs default to 0.
        Raises :class:`LearningError` that names the argument for a wrong shape, type, value or token.
        """
        count = len(hypotheses)
        if count == 0:
            raise LearningError("hypotheses: found none, expected at least one")
        feeds: dict[str, NDArray[np.generic]] = {"features": self._checked_features(features)}
        feeds["tokens"], feeds["lengths"] = self._padded(hypotheses)
        feeds["weights"] = _vector("weights", weights, count)
        feeds["costs"] = _vector("costs", np.zeros(count) if costs is None else costs, count)
        if not np.isfinite(cost_scale):
            raise LearningError(f"cost_scale: found {cost_scale!r}, expected a finite number")
        feeds["cost_scale"] = np.asarray(cost_scale, np.float32)
        for name, shape in self._shapes.items():
            value = parameters.get(name)
            if value is None or value.shape != shape or value.dtype != np.float32:
                found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
                raise LearningError(f"parameters: {name!r}: found {found}, expected float32 {list(shape)}")
            feeds[name] = value
        results = dict(zip(self._outputs, run(self._session, feeds, "training.onnx"), strict=True))
        return Gradients(
            negative_log_likelihoods=results["negative_log_likelihoods"],
            expected_cost=float(results["expected_cost"]),
            gradients={name: results[GRADIENT + name] for name in self.trainable},
        )

    def _checked_features(self, features: Float) -> Float:
        bins, least = self.architecture.mel_bins, self.architecture.subsampling_factor
        if features.ndim != 2 or features.shape[1] != bins or len(features) < least:
            raise LearningError(f"features: found shape {list(features.shape)}, expected [F, {bins}] with F >= {least}")
        if features.dtype != np.float32 or not np.isfinite(features).all():
            raise LearningError(f"features: found {features.dtype} or values not finite, expected finite float32")
        return features

    def _padded(self, hypotheses: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        lengths = np.array([len(tokens) for tokens in hypotheses], np.int64)
        padded = np.zeros((len(hypotheses), int(lengths.max())), np.int64)
        for row, tokens in enumerate(hypotheses):
            padded[row, : len(tokens)] = tokens
            if len(tokens) and (min(tokens) < 1 or max(tokens) >= self.architecture.pieces):
                raise LearningError(
                    f"hypotheses: entry {row} holds a token outside 1..{self.architecture.pieces - 1} (0 is blank)"
                )
        return padded, lengths


def _vector(name: str, values: ArrayLike, count: int) -> Float:
    vector = np.asarray(values, np.float32)
    if vector.shape != (count,) or not np.isfinite(vector).all():
        raise LearningError(f"{name}: found shape {list(vector.shape)}, expected [{count}] finite, one per hypothesis")
    return vector
