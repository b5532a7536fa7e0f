"""What a decoder needs of a transducer and a learner of its gradients, whatever runs them; whether one works at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.errors import BundleError, IdiolectError, LearningError
from device_sdk.features.logmel import SILENCE

_FRAMES = 99  # of 10 ms: a second

Float = NDArray[np.float32]
States = tuple[NDArray[Any], ...]
"""What a network keeps from call to call: h and c, [layers, B, size] float32, of LSTM layers. The second axis of each
array of a prediction network is that of hypotheses."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What an encoder hears at once, in feature frames. size: of a window; shift: by which the next one begins later.
    tail: silence that it hears at the end of an utterance, before it has told all; left-over frames are dropped where
    it is 0."""

    size: int
    shift: int
    tail: int = 0

    def silence(self, waiting: int) -> int:
        """Frames to add at the end of an utterance of which ``waiting`` frames are still to be heard."""
        if not self.tail:
            return 0
        return -(-(waiting + self.tail) // self.shift) * self.shift + self.size - self.shift - waiting


class Transducer(Protocol):
    """The three networks of a streaming RNN-T. F: feature frames (10 ms); M: mel bins; T: encoder frames; B: beam; J:
    joiner size; V: pieces."""

    @property
    def architecture(self) -> AnyArchitecture: ...
    @property
    def windows(self) -> Windows: ...

    def encode(self, features: Float, state: States | None = None) -> tuple[Float, States]:
        """The encoder's next windows. features: [F, M] float32 raw log-mel, F = size + n * shift of its windows; what
        these share is given again with the next ones. Returns (encoded [T, J] float32 with T = (n + 1) * shift /
        subsampling factor, state for what follows); ``None`` starts an utterance."""
        ...

    def predict(self, tokens: NDArray[np.int64], state: States | None = None) -> tuple[Float, States]:
        """One step of the prediction network. tokens: [B] int64 (blank first). Returns (predicted [B, J], state)."""
        ...

    def join(self, encoded: Float, predicted: Float) -> Float:
        """[B, J] or [B, K, J] each, with 1 for B or K to repeat rows. Returns log-probabilities with V for J."""
        ...


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a pass over an utterance gives. N: hypotheses. negative_log_likelihoods: [N] float32, nats.
    expected_cost: E[M] under softmax(-NLL), in the costs' units. gradients: parameter name -> float32, of its shape."""

    negative_log_likelihoods: Float
    expected_cost: float
    gradients: Mapping[str, Float]


class Training(ABC):
    """Losses and gradients of one utterance's hypotheses. F: frames; M: mel bins; N: hypotheses; r: rank. trainable:
    what gradients are given for, in the canonical order; factors by their own names. For one thread at a time."""

    architecture: AnyArchitecture
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
        """d(sum_i weights_i NLL_i + cost_scale * E[M]) by everything trainable (Rao et al. 2023, eq. 1). parameters:
        parameters and constants by name, float32, and for adapters the factors, [out, r] and [r, in], whose products
        the matrices hold already. features: [F, M] float32 raw log-mel, F at least the subsampling factor (left-over
        frames are dropped). hypotheses: N token lists without blank; one may be empty. weights, costs: [N]; costs
        default to 0. Raises :class:`LearningError` that names the argument for a wrong shape, type, value or token, or
        for an utterance that is :meth:`too_large`."""
        return self._gradients(
            parameters, utterance_feeds(self.architecture, features, hypotheses, weights, costs, cost_scale)
        )

    @abstractmethod
    def _gradients(self, parameters: Mapping[str, Float], feeds: dict[str, NDArray[np.generic]]) -> Gradients:
        """:meth:`run` of checked feeds."""


def zero_state(layers: int, rows: int, size: int) -> States:
    """Of a stack of LSTM layers, before anything was heard."""
    zeros = np.zeros((layers, rows, size), np.float32)
    return (zeros, zeros)


def check_features(mel_bins: int, windows: Windows, features: Float) -> None:
    """Raises ValueError for what no :meth:`Transducer.encode` takes."""
    if features.ndim != 2 or features.shape[1] != mel_bins or (len(features) - windows.size) % windows.shift:
        expected = f"[F, {mel_bins}] with F = {windows.size} + n * {windows.shift}"
        raise ValueError(f"features: found shape {features.shape}, expected {expected}")


def encode_whole(transducer: Transducer, features: Float) -> Float:
    """The encoder's output [T, J] for a whole utterance [F, M], with what silence ends it; left-over frames go."""
    return transducer.encode(whole_windows(transducer.windows, features))[0]


def whole_windows(windows: Windows, features: Float) -> Float:
    """Features [F, M] with the silence that ends them, as many as windows take."""
    silence = np.full((windows.silence(len(features)), features.shape[1]), SILENCE, np.float32)
    heard = np.concatenate([features, silence])
    whole = windows.size + (len(heard) - windows.size) // windows.shift * windows.shift
    return np.ascontiguousarray(heard[:whole])


def try_transducer(transducer: Transducer, source: str) -> int:
    """Runs every graph over a second of near silence and returns how many frames were encoded. source: for messages.
    Raises BundleError for graphs that fail, give other shapes, or give what are no log-probabilities."""
    sizes, windows = transducer.architecture, transducer.windows
    count = max(1, _FRAMES // windows.shift)
    frames = count * windows.shift // sizes.subsampling_factor
    features = np.full((windows.size + (count - 1) * windows.shift, sizes.mel_bins), -10.0, np.float32)
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
    expected = (frames, sizes.joiner_size), (2, sizes.joiner_size), (2, sizes.pieces)
    if (encoded.shape, predicted.shape, log_probs.shape) != expected:
        raise BundleError(
            f"{source}: recognition graphs give shapes {encoded.shape}, {predicted.shape}, {log_probs.shape}, "
            f"expected {', '.join(map(str, expected))}; export them again"
        )
    if not np.allclose(np.exp(log_probs).sum(axis=1), 1.0, atol=1e-4):
        raise BundleError(f"{source}: the joiner gives probabilities that do not sum to 1; export it again")
    return len(encoded)


def utterance_feeds(
    architecture: AnyArchitecture,
    features: Float,
    hypotheses: Sequence[Sequence[int]],
    weights: ArrayLike,
    costs: ArrayLike | None,
    cost_scale: float,
) -> dict[str, NDArray[np.generic]]:
    """A graph's inputs besides parameters. F: frames; M: mel bins; N: hypotheses; U: tokens of the longest. Returns
    features [F, M] float32, tokens [N, U] int64 padded with 0, lengths [N] int64, weights, costs [N] float32,
    cost_scale [] float32 and pull [F // K, J] float32, 0. costs default to 0. Raises :class:`LearningError` that names
    a wrong argument."""
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
    feeds["pull"] = np.zeros((len(features) // architecture.subsampling_factor, architecture.joiner_size), np.float32)
    return feeds


def check_parameter(parameters: Mapping[str, Float], name: str, shape: tuple[int, ...]) -> Float:
    """The parameter of this name. Raises :class:`LearningError` where it is missing or of another shape or type."""
    value = parameters.get(name)
    if value is None or value.shape != shape or value.dtype != np.float32:
        found = "nothing" if value is None else f"{value.dtype} {list(value.shape)}"
        raise LearningError(f"parameters: {name!r}: found {found}, expected float32 {list(shape)}")
    return value


def _features(architecture: AnyArchitecture, features: Float) -> Float:
    bins, least = architecture.mel_bins, architecture.subsampling_factor
    if features.ndim != 2 or features.shape[1] != bins or len(features) < least:
        raise LearningError(f"features: found shape {list(features.shape)}, expected [F, {bins}] with F >= {least}")
    if features.dtype != np.float32 or not np.isfinite(features).all():
        raise LearningError(f"features: found {features.dtype} or values not finite, expected finite float32")
    return features


def _padded(
    architecture: AnyArchitecture, hypotheses: Sequence[Sequence[int]]
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
