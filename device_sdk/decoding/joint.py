"""What a search needs of a transducer."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from device_sdk.runtimes.protocol import RecurrentState

__all__ = ["Joint", "Predictor"]

Float = NDArray[np.float32]


class Predictor(Protocol):
    """The prediction network of a transducer, one step, batched."""

    def predict(self, tokens: NDArray[np.int64], state: RecurrentState | None) -> tuple[Float, RecurrentState]:
        """tokens [B]; state (h, c), each [layers, B, P], None at the start. Returns (predicted [B, J], next state)."""
        ...


class Joint(Predictor, Protocol):
    """The joiner, too."""

    def join(self, encoded: Float, predicted: Float) -> Float:
        """encoded, predicted [B, K, J], 1 for what is to be repeated. Returns log-probabilities [B, K, V], blank 0."""
        ...
