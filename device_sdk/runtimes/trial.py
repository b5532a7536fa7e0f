"""Whether a transducer works at all: a second of near silence through every graph."""

from __future__ import annotations

import numpy as np

from device_sdk.errors import BundleError, IdiolectError
from device_sdk.runtimes.protocol import Transducer

__all__ = ["try_transducer"]

_STACKS = 33  # encoder frames of 30 ms


def try_transducer(transducer: Transducer, source: str) -> int:
    """Runs every graph once and returns how many frames were encoded. source: the bundle, for messages.

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
