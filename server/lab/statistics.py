"""Whether one system makes fewer errors than another on the same utterances, or under the same seeds."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from device_sdk.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Interval:
    """mean: the value on the data themselves; low, high: its 95 % interval."""

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "excludes_zero": self.excludes_zero}


@dataclass(frozen=True, slots=True)
class Difference:
    """System b against system a; below zero, b makes fewer errors. rate_a, rate_b: micro-averaged error rates.
    absolute: rate_b - rate_a. relative: (rate_b - rate_a) / rate_a."""

    rate_a: float
    rate_b: float
    absolute: Interval
    relative: Interval
    groups: int

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "absolute": self.absolute.as_json(), "relative": self.relative.as_json()}


def in_percent(interval: Mapping[str, Any]) -> tuple[str, str, str]:
    """Mean, low and high of an interval's JSON as tables show them: in percent, with signs."""
    mean, low, high = (f"{100 * interval[end]:+.1f}" for end in ("mean", "low", "high"))
    return mean, low, high


def paired_bootstrap(
    errors_a: npt.ArrayLike,
    errors_b: npt.ArrayLike,
    denominators: npt.ArrayLike,
    groups: Sequence[Hashable],
    seed: int = 0,
    samples: int = 10_000,
) -> Difference:
    """Paired bootstrap of the difference in micro-averaged error rate, resampling whole groups with replacement. N:
    utterances. errors_a, errors_b: errors of the two systems on each utterance [N]. denominators: what they are a share
    of, words or slots [N]. groups: whose utterance it is [N]; utterances of one speaker are not independent, so
    speakers are resampled, not utterances. Both systems see the same resamples. seed, samples: resamples drawn. Raises
    ConfigurationError where lengths differ, nothing is counted, or system a makes no error (no relative difference)."""
    first, second, sizes = (np.asarray(values, np.float64) for values in (errors_a, errors_b, denominators))
    if first.ndim != 1 or not first.shape == second.shape == sizes.shape or len(groups) != first.size:
        raise ConfigurationError(
            f"paired bootstrap: lengths {first.shape}, {second.shape}, {sizes.shape}, {len(groups)}; expected one"
        )
    if first.size == 0 or sizes.sum() <= 0 or samples < 1:
        raise ConfigurationError("paired bootstrap: nothing to compare; expected utterances with words or slots")
    if first.sum() <= 0:
        raise ConfigurationError("paired bootstrap: system a makes no error, so no relative difference exists")
    numbers: dict[Hashable, int] = {}
    index = np.array([numbers.setdefault(group, len(numbers)) for group in groups])
    totals = np.stack([np.bincount(index, values, minlength=len(numbers)) for values in (first, second, sizes)])
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(len(numbers), np.full(len(numbers), 1 / len(numbers)), size=samples)
    sums = counts @ totals.T  # [samples, 3]
    sums = sums[(sums[:, 2] > 0) & (sums[:, 0] > 0)]
    rate_a, rate_b = sums[:, 0] / sums[:, 2], sums[:, 1] / sums[:, 2]
    true_a, true_b = (float(total / sizes.sum()) for total in (first.sum(), second.sum()))
    absolute = _interval(true_b - true_a, rate_b - rate_a)
    relative = _interval((true_b - true_a) / true_a, (rate_b - rate_a) / rate_a)
    return Difference(true_a, true_b, absolute, relative, len(numbers))


def mean_interval(values: npt.ArrayLike) -> Interval | None:
    """Student's 95 % interval of the mean of a few values [N], such as differences under several seeds. None for a
    single value, which says nothing of the others. ConfigurationError: no value."""
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or found.size == 0:
        raise ConfigurationError(f"interval of a mean: found values of shape {found.shape}, expected [N] with N >= 1")
    if found.size == 1:
        return None
    mean = float(found.mean())
    width = float(stdtrit(found.size - 1, 0.975) * found.std(ddof=1) / np.sqrt(found.size))
    return Interval(mean, mean - width, mean + width)


def _interval(value: float, resamples: npt.NDArray[np.float64]) -> Interval:
    low, high = np.percentile(resamples, [2.5, 97.5])
    return Interval(value, float(low), float(high))
