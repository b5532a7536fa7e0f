"""What of its learning a device sends: a difference of weights or a mean gradient, clipped, then noised with the
system's own randomness, and how well learning went."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.checks import reading
from device_sdk.errors import LearningError, PrivacyError
from device_sdk.feedback.distance import edit_distance
from device_sdk.feedback.signals import Corrected, Signal, parts
from device_sdk.learning.step import Arrays, check_finite
from device_sdk.privacy.clipping import clip

if TYPE_CHECKING:  # learning starts without pydantic
    from device_sdk.wire.messages import DeltaPlan

_GRID = 1024
"""Grid steps to one standard deviation of the noise."""


def difference(local: Arrays, base: Arrays) -> dict[str, NDArray[np.float32]]:
    """local - base for every parameter of the base. (A server optimizer's pseudo-gradient is minus the mean of these.)
    LearningError: names, shapes or values that do not belong together."""
    if set(local) != set(base):
        raise LearningError(f"delta: names differ: {sorted(set(local) ^ set(base))}; expected the same parameters")
    for name, array in base.items():
        if local[name].shape != array.shape:
            raise LearningError(f"delta {name}: found shape {local[name].shape}, expected {array.shape}")
    delta = {name: local[name] - array for name, array in base.items()}
    check_finite(delta, "delta {}: found values that are not finite")
    return delta


def secret_gaussian(count: int) -> NDArray[np.float64]:
    """``count`` standard normal values, float64, from the operating system's cryptographic generator. No seed can be
    set: whoever knew it could subtract the noise. Box-Muller over 53-bit uniforms that never are 0."""
    pairs = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * pairs), np.uint64).reshape(2, pairs) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(uniform[0])), 2.0 * math.pi * uniform[1]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]


def add_noise(arrays: Arrays, stddev: float) -> dict[str, NDArray[np.float32]]:
    """Every value plus Gaussian noise of standard deviation ``stddev``; 0 leaves the arrays as they are. The sum is
    rounded to a grid of a power of two near stddev / 1024, so that the low-order bits of a result do not tell which
    value it was made from (naive floating-point noise does)."""
    if not (math.isfinite(stddev) and stddev >= 0):
        raise PrivacyError(f"noise_stddev: found {stddev}, expected a number >= 0")
    if stddev == 0:
        return dict(arrays)
    grid = 2.0 ** math.floor(math.log2(stddev / _GRID))
    result: dict[str, NDArray[np.float32]] = {}
    for name, array in arrays.items():
        noise = secret_gaussian(array.size).reshape(array.shape)
        result[name] = (np.round((array.astype(np.float64) + stddev * noise) / grid) * grid).astype(np.float32)
    return result


def bound(delta: Arrays, plan: DeltaPlan) -> tuple[dict[str, NDArray[np.float32]], float]:
    """(delta clipped as the plan says, then noised; its L2 norm before). PrivacyError: impossible bound or noise."""
    within, norm = clip(delta, plan.clip_norm, plan.clipping)
    return add_noise(within, plan.noise_stddev), norm


@dataclass(frozen=True, slots=True)
class GradientSum:
    """sum: parameter name -> float32 array, over ``utterances`` of them. limit: how many are wanted, if any."""

    sum: Arrays
    utterances: int
    limit: int | None = None

    @property
    def full(self) -> bool:
        return self.limit is not None and self.utterances >= self.limit


def empty(shapes: Mapping[str, tuple[int, ...]], limit: int | None = None) -> GradientSum:
    """The sum of no gradient."""
    return GradientSum({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, 0, limit)


def add(total: GradientSum, gradients: Arrays) -> GradientSum:
    """The sum with one more utterance's gradient; a parameter without one counts as zero. ``total`` stays as it is.
    LearningError: a gradient of no parameter of the sum, or one that is not finite."""
    if unknown := gradients.keys() - total.sum.keys():
        raise LearningError(f"gradient {min(unknown)}: not a parameter of the sum")
    check_finite(gradients, "gradient {}: found values that are not finite; the utterance is left out")
    added = {name: total.sum[name] + gradient for name, gradient in gradients.items()}
    return GradientSum({**total.sum, **added}, total.utterances + 1, total.limit)


def mean(total: GradientSum) -> dict[str, NDArray[np.float32]]:
    """The mean over the utterances; zero over none."""
    share = np.float32(1.0 / total.utterances if total.utterances else 0.0)
    return {name: array * share for name, array in total.sum.items()}


@dataclass(frozen=True, slots=True)
class Measures:
    """loss: summed over ``utterances``, nats. word_errors: of what was served, against the ``words`` given."""

    loss: float = 0.0
    utterances: int = 0
    word_errors: int = 0
    words: int = 0

    @property
    def mean_loss(self) -> float | None:
        """L_k of Gao et al. 2022, eq. 9. None without an utterance, and where REINFORCE made it negative: a reward."""
        return self.loss / self.utterances if self.utterances and self.loss >= 0 else None

    @property
    def word_error(self) -> float | None:
        """wer_k of Gao et al. 2022, eq. 10, on words that the model had not learned from, where any were given."""
        return self.word_errors / self.words if self.words else None


def measure(measures: Measures, losses: Sequence[float], served: str, signal: Signal | None) -> Measures:
    """With one more utterance. losses: of its passes, at least one; served: the text that the app acted on."""
    given = [each.text.split() for each in parts(signal) if isinstance(each, Corrected)]
    return Measures(
        measures.loss + math.fsum(losses) / len(losses),
        measures.utterances + 1,
        measures.word_errors + sum(edit_distance(words, served.split()) for words in given),
        measures.words + sum(map(len, given)),
    )


def measures_to_bytes(measures: Measures, base: str) -> bytes:
    """As the state keeps them. base: version of the model that they are counted since."""
    return json.dumps({"base": base, **asdict(measures)}).encode()


def measures_from_bytes(content: bytes | None, base: str) -> Measures:
    """What the state holds, nothing where it is of another base. StateError: unreadable."""
    if content is None:
        return Measures()
    with reading("settings/measures"):
        fields = json.loads(content)
        if fields["base"] != base:
            return Measures()
        counts = [int(fields[name]) for name in ("utterances", "word_errors", "words")]
        measures = Measures(float(fields["loss"]), *counts)
        if not math.isfinite(measures.loss) or min(counts) < 0:
            raise ValueError
        return measures
