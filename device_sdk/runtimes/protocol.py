"""What a decoder needs of a transducer and a learner of its gradients, whatever runs them; whether one works at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import BundleError, IdiolectError, LearningError

_STACKS = 33  # encoder frames of 30 ms: a second

Float = NDArray[np.float32]


class RecurrentState(NamedTuple):
    """h, c: [layers, B, size] float32 of a stack of LSTM layers."""

    h: Float
    c: Float


class Transducer(Protocol):
    """The three networks of a streaming RNN-T.

    F: feature frames (10 ms); M: mel bins; T: encoder frames (30 ms); B: beam; J: joiner size; V: pieces.
    """

    @property
    def architecture(self) -> Architecture: ...

    def encode(self, features: Float, state: RecurrentState | None = None) -> tuple[Float, RecurrentState]:
        """Next chunk of the encoder. features: [F, M] float32 raw log-mel, F a multiple of the subsampling factor.

        Returns (encoded [T, J] float32, state for the next chunk); ``None`` starts an utterance.
        """
        ...

    def predict(self, tokens: NDArray[np.int64], state: RecurrentState | None = None) -> tuple[Float, RecurrentState]:
        """One step of the prediction network. tokens: [B] int64 (blank first). Returns (predicted [B, J], state)."""
        ...

    def join(self, encoded: Float, predicted: Float) -> Float:
        """encoded and predicted: [B, J] or [B, K, J], with 1 for B or K where rows are to be repeated.

        Returns log-probabilities [B, V] or [B, K, V] float32 (nats).
        """
        ...


@dataclass(frozen=True, slots=True)
class Gradients:
    """What one pass over one utterance gives. N: hypotheses.

    negative_log_likelihoods: [N] float32, nats. expected_cost: E[M] under softmax(-NLL), in units of the costs.
    gradients: parameter name -> float32 array of the parameter's shape.
    """

    negative_log_likelihoods: Float
    expected_cost: float
    gradients: Mapping[str, Float]


class Training(ABC):
    """Losses and gradients of one utterance's hypotheses. F: frames; M: mel bins; N: hypotheses; r: rank.

    trainable: what gradients are given for, in the canonical order; factors by their own names.
    Not for use by several threads at once.
    """

    architecture: Architecture
    trainable: tuple[str, ...]

    def too_large(self, features: Float, hypotheses: Sequence[Sequence[int]]) -> str | None:
        """Why an utterance [F, M] with these hypotheses cannot be run, None where it can."""
        return None

    def run(
        self,
        parameters: Mapping[str, Float],
        features: Float,
        hypotheses: Sequence[Sequence[int]],
        weights: ArrayLike,
        costs: ArrayLike | None = None,
        cost_scale: float = 0.0,
    ) -> Gradients:
        """d(sum_i weights_i NLL_i + cost_scale * E[M]) by everything trainable (Rao et al. 2023, eq. 1).

        parameters: parameters and constants by name, float32, and for adapters the factors, [out, r] and [r, in], whose
        products the matrices hold already. features: [F, M] float32 raw log-mel, F at least the subsampling factor
        (left-over frames are dropped). hypotheses: N token lists without blank; one may be empty. weights, costs: [N];
        costs default to 0.
        Raises :class:`LearningError` that names the argument for a wrong shape, type, value or token, or for an
        utterance that is :meth:`too_large`.
        """
        return self._gradients(
            parameters, utterance_feeds(self.architecture, features, hypotheses, weights, costs, cost_scale)
        )

    @abstractmethod
    def _gradients(self, parameters: Mapping[str, Float], feeds: dict[str, NDArray[np.generic]]) -> Gradients:
        """:meth:`run` of checked feeds."""


def zero_state(layers: int, rows: int, size: int) -> RecurrentState:
    """Of a stack of LSTM layers, before anything was heard."""
    zeros = np.zeros((layers, rows, size), np.float32)
    return RecurrentState(zeros, zeros)


def check_features(sizes: Architecture, features: Float) -> None:
    """Raises ValueError for what no :meth:`Transducer.encode` takes."""
    if features.ndim != 2 or features.shape[1] != sizes.mel_bins or len(features) % sizes.subsampling_factor:
        expected = f"[F, {sizes.mel_bins}] with F a multiple of {sizes.subsampling_factor}"
        raise ValueError(f"features: found shape {features.shape}, expected {expected}")


def try_transducer(transducer: Transducer, source: str) -> int:
    """Runs every graph over a second of near silence and returns how many frames were encoded. source: for messages.

    Raises BundleError for graphs that fail, give other shapes, or give what are no log-probabilities.
    """
    sizes = transducer.architecture
    features = np.full((_STACKS * sizes.subsampling_factor, sizes.mel_bins), -10.0, np.float32)
    try:
        _, state = transducer.encode(features)
        encoded, _ = transducer.encode(features, state)
        predicted, recurrent = transducer.predict(np.zeros(2, np.int64))
        predicted, _ = transducer.predict(np.ones(2, np.int64), recurrent)
        log_probs = transducer.join(encoded[:1], predicted)
    except IdiolectError:
        raise
    except Exception as error:  # a runtime raises many types that share no public base
        raise BundleError(f"{source}: a recognition graph fails when it is run ({error}); export it again") from error
    expected = (_STACKS, sizes.joiner_size), (2, sizes.joiner_size), (2, sizes.pieces)
    if (encoded.shape, predicted.shape, log_probs.shape) != expected:
        raise BundleError(
            f"{source}: recognition graphs give shapes {encoded.shape}, {predicted.shape}, {log_probs.shape}, "
            f"expected {', '.join(map(str, expected))}; export them again"
        )
    if not np.allclose(np.exp(log_probs).sum(axis=1), 1.0, atol=1e-4):
        raise BundleError(f"{source}: the joiner gives probabilities that do not sum to 1; export it again")
    return len(encoded)


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
            raise LearningError(f"hypotheses: entry {row} holds a token outside 1..{architecture.pieces - 1}")
    return padded, lengths


def _vector(name: str, values: ArrayLike, count: int) -> Float:
    vector = np.asarray(values, np.float32)
    if vector.shape != (count,) or not np.isfinite(vector).all():
        raise LearningError(f"{name}: found shape {list(vector.shape)}, expected [{count}] finite, one per hypothesis")
    return vector
