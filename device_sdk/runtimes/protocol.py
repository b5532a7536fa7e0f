"""What a decoder needs of a transducer and a learner of its gradients, whatever runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from device_sdk.bundle.architecture import Architecture

__all__ = ["Gradients", "RecurrentState", "Training", "Transducer"]

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


class Training(Protocol):
    """Losses and gradients of one utterance's hypotheses; see
    :class:`device_sdk.runtimes.training.TrainingSession`. F: frames; M: mel bins; N: hypotheses."""

    @property
    def trainable(self) -> tuple[str, ...]:
        """What gradients are given for, in the canonical order."""
        ...

    def too_large(self, features: Float, hypotheses: Sequence[Sequence[int]]) -> str | None:
        """Why an utterance [F, M] with these hypotheses cannot be run, None where it can."""
        ...

    def run(
        self,
        parameters: Mapping[str, Float],
        features: Float,
        hypotheses: Sequence[Sequence[int]],
        weights: ArrayLike,
        costs: ArrayLike | None = None,
        cost_scale: float = 0.0,
    ) -> Gradients:
        """d(sum_i weights_i NLL_i + cost_scale * E[M]) by everything trainable (Rao et al. 2023, eq. 1)."""
        ...
