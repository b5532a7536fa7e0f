"""What a decoder needs of a transducer, whatever runs it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture

__all__ = ["RecurrentState", "Transducer"]

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
