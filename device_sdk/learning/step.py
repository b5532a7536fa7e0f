"""One step in numpy: masked features, preconditioned gradients, clipped SGD with course, factors of low rank; and
checks of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import factor_names
from device_sdk.bundle.second_moments import SecondMoments
from device_sdk.errors import LearningError
from device_sdk.learning.settings import MaskSettings, StepSettings

Float = NDArray[np.float32]

Arrays = Mapping[str, Float]
"""Parameter name -> float32 array, shapes as in the architecture."""

Scales = Mapping[str, tuple[Float, ...]]
"""Parameter name -> for each axis, a factor at each index of it."""

_ITERATIONS = 2
_TINY = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True, slots=True)
class Course:
    """What steps remember of those before. loss: running mean of the losses seen, NaN at the start. steps: taken so
    far."""

    loss: float = math.nan
    steps: int = 0


def check_finite(arrays: Arrays, message: str) -> None:
    """LearningError: an array has values that are not finite; the message, with its name in the place of ``{}``."""
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise LearningError(message.format(name))


def mask(features: Float, mean: Float | None, settings: MaskSettings, generator: np.random.Generator) -> Float:
    """SpecAugment: the student sees masked features, the teacher clean ones (Rao et al. 2023, section 2.2). features
    [F, M] raw log-mel with bands and spans of it replaced by ``mean`` [M], which the graphs normalize to zero;
    None is the features' own. F: frames; M: mel bins. The features given are not changed."""
    frames, bins = features.shape
    mean = features.mean(axis=0) if mean is None else mean
    result = features.copy()
    for _ in range(settings.frequency_masks):
        width = int(generator.integers(0, min(settings.frequency_width, bins) + 1))
        start = int(generator.integers(0, bins - width + 1))
        result[:, start : start + width] = mean[start : start + width]
    left = int(settings.time_share * frames)
    for _ in range(settings.time_masks):
        width = int(generator.integers(0, min(settings.time_width, left) + 1))
        start = int(generator.integers(0, frames - width + 1))
        result[start : start + width] = mean
        left -= width
    return result


def scales(second_moments: SecondMoments, damping: float) -> Scales:
    """Factors prod_axis (v_axis / m + damping)^-1/2 m^-1/2, m the mean of v, with v the second moments: gradients are
    divided by the root of their usual size, measured on public speech, which an adaptive optimizer would need hundreds
    of steps to learn (not in the papers). damping: share of a tensor's mean square that is added along each axis:
    larger is closer to plain SGD within a tensor. The factors of all parameters together have mean 1, so preconditioned
    gradients are about as long as plain."""
    unscaled: dict[str, list[NDArray[np.float64]]] = {}
    total, count = 0.0, 0
    for name, vectors in second_moments.items():
        mean = float(np.mean(vectors[0], dtype=np.float64))
        factors = [1.0 / np.sqrt(vector.astype(np.float64) / mean + damping) for vector in vectors]
        factors[0] /= math.sqrt(mean)
        unscaled[name] = factors
        total += math.prod(float(factor.sum()) for factor in factors)
        count += math.prod(factor.size for factor in factors)
    for factors in unscaled.values():
        factors[0] /= total / count
    return {name: tuple(factor.astype(np.float32) for factor in factors) for name, factors in unscaled.items()}


def precondition(gradients: Arrays, factors: Scales) -> dict[str, Float]:
    """Every gradient times its factors along each axis; the arrays given are left as they are."""
    result = dict(gradients)
    for name, gradient in gradients.items():
        for axis, factor in enumerate(factors[name]):
            result[name] = result[name] * np.expand_dims(factor, [at for at in range(gradient.ndim) if at != axis])
    return result


def global_norm(arrays: Arrays) -> float:
    """L2 norm over all values of all arrays, summed in float64."""
    return math.sqrt(sum(float(np.vdot(array, array)) for array in arrays.values()))


def sgd(
    weights: Arrays, gradients: Arrays, loss: float, course: Course, settings: StepSettings
) -> tuple[dict[str, Float], Course, float]:
    """One step: weights - learning_rate * clipped gradient. Returns (weights, course, norm).
    Constants among the weights (no gradient of that name) are passed through. LearningError: the loss or a gradient is
    not finite, the gradient's norm or the loss exploded, or the step would leave a weight that is not finite. The
    arrays given are never changed, so the weights are as they were."""
    if not math.isfinite(loss):
        raise LearningError(f"step {course.steps}: loss: found {loss}, expected a finite number; the step is refused")
    if not math.isfinite(norm := global_norm(gradients)):
        check_finite(gradients, f"step {course.steps}: gradient {{}}: found values that are not finite; refused")
    if not norm <= settings.largest_norm:
        raise LearningError(
            f"step {course.steps}: gradient norm: found {norm:.3g}, expected at most {settings.largest_norm:.3g}; "
            "the step is refused"
        )
    mean = loss if math.isnan(course.loss) else course.loss
    if loss > settings.largest_rise * max(abs(mean), 10.0):
        raise LearningError(
            f"step {course.steps}: loss: found {loss:.3g}, expected less than {settings.largest_rise:.3g} times its "
            f"running mean {mean:.3g}; refused"
        )
    scale = np.float32(min(1.0, settings.clip_norm / norm) if norm else 1.0)
    stepped, rate = dict(weights), np.float32(settings.learning_rate)
    for name, gradient in gradients.items():
        stepped[name] = weights[name] - rate * (gradient * scale)
    check_finite(stepped, f"step {course.steps}: {{}}: the step leaves values that are not finite; refused")
    return stepped, Course(0.9 * mean + 0.1 * loss, course.steps + 1), norm


# Adapters (Hu et al. 2021, LoRA): a matrix W [out, in] with factors up [out, r] and down [r, in] is used as
# W + up down, and steps move the factors. The rest of the device knows the sum only; what steps change of it has rank r
# at most, so the factors are computed from it again whenever they are not at hand.


def factorize(
    weights: Arrays, start: Arrays, matrices: Collection[str], rank: int, generator: np.random.Generator
) -> dict[str, Float]:
    """Factors of what steps changed: up @ down is weights - start, as far as that is of rank r; by their names. rank:
    r, or a matrix' smaller side where that is less. down: [r, in], orthonormal rows; those that no change has used yet
    are random, and up [out, r] is 0 there, so that the sum is as it was."""
    factors: dict[str, Float] = {}
    for name in matrices:
        changed = (weights[name] - start[name]).astype(np.float64)
        out, width = changed.shape
        # Subspace iteration (Halko et al. 2011, 4.5) from random directions, which are kept where nothing has changed.
        basis = generator.standard_normal((width, min(rank, out, width)))
        for _ in range(_ITERATIONS):
            basis = np.linalg.qr(changed.T @ (changed @ basis) + _TINY * basis)[0]
        up, down = factor_names(name)
        factors[up] = (changed @ basis).astype(np.float32)
        factors[down] = np.ascontiguousarray(basis.T, np.float32)
    return factors


def merge(weights: Arrays, before: Arrays, after: Arrays, matrices: Collection[str]) -> dict[str, Float]:
    """The weights once their factors went from ``before`` to ``after``. LearningError: values that are not finite."""
    moved = dict(weights)
    for name in matrices:
        up, down = factor_names(name)
        moved[name] = weights[name] + (after[up] @ after[down] - before[up] @ before[down])
    check_finite(moved, "adapters {}: the step leaves values that are not finite; refused")
    return moved


def factor_scales(matrix_scales: Scales, matrices: Collection[str]) -> dict[str, tuple[Float, ...]]:
    """The preconditioner's factors for adapters: the matrix' own along the shared axis, by the other's mean."""
    result, one = dict[str, tuple[Float, ...]](), np.ones(1, np.float32)
    for name in matrices:
        (rows, columns), (up, down) = matrix_scales[name], factor_names(name)
        result[up] = rows * columns.mean(dtype=np.float32), one
        result[down] = one, columns * rows.mean(dtype=np.float32)
    return result
