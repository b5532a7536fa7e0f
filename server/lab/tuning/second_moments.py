"""How large a bundle's gradients usually are, by the device's own training graph. Nothing here loads torch."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.second_moments import SecondMoments, moments
from device_sdk.errors import DataError
from device_sdk.features import logmel
from device_sdk.learning.settings import MaskSettings
from device_sdk.learning.step import global_norm, mask
from device_sdk.runtimes.training import TrainingSession
from server.lab.corpora.utterance import Utterance

_BLANK = 0


def measure(bundle: Bundle, utterances: Iterable[Utterance], seed: int = 0) -> tuple[SecondMoments, int]:
    """(second moments of the gradient of each utterance's transcript, utterances that were used). Gradients are scaled
    to a length of 1 first, as clipping on the device does: every utterance counts the same. Utterances without a
    transcript in the bundle's pieces are left out. Raises :class:`DataError` where none is left."""
    session = TrainingSession(bundle, subset=bundle.subset)
    generator = np.random.default_rng(seed)
    squares: dict[str, NDArray[np.float64]] = {
        name: np.zeros(shape) for name, shape in bundle.architecture.parameter_shapes().items()
    }
    used = 0
    for utterance in utterances:
        tokens = tuple(bundle.tokenizer.encode(utterance.sure_text or ""))
        features = logmel(np.asarray(utterance.load(), np.float32), bundle.features)
        if tokens and _BLANK not in tokens and len(features) >= bundle.architecture.subsampling_factor:
            heard = mask(features, bundle.feature_mean, MaskSettings(), generator)
            gradients = session.run(dict(bundle.weights), heard, (tokens,), np.ones(1, np.float32)).gradients
            norm = global_norm(gradients)
            if norm > 0.0:
                used += 1
                for name, gradient in gradients.items():
                    squares[name] += np.square(gradient.astype(np.float64) / norm)
    if not used:
        raise DataError("second moments: no utterance with a transcript to take gradients of; give other --data")
    return moments({name: total / used for name, total in squares.items()}), used
