import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from device_sdk.errors import PrivacyError
from device_sdk.privacy import contributions
from device_sdk.privacy.contributions import gaussian_variance, local_scale, locally_noised, share_variance
from device_sdk.privacy.samplers import discrete_gaussian, discrete_gaussians, discrete_laplace, discrete_laplaces
from device_sdk.wire.messages import MarginalPlan


@pytest.mark.parametrize("variance", [1, 5, 400])
def test_the_draws_follow_the_discrete_gaussian_distribution(variance: int) -> None:
    values = np.arange(-200, 201)
    weights = np.exp(-(values**2) / (2 * variance))
    _follows(discrete_gaussians(60_000, variance), values, weights, 60_000)
    _follows([discrete_gaussian(variance) for _ in range(2000)], values, weights, 2000)


def _follows(draws: Iterable[int], values: Any, weights: Any, number: int) -> None:
    found = Counter(int(draw) for draw in draws)
    for value, expected in zip(values.tolist(), (number * weights / weights.sum()).tolist(), strict=True):
        assert abs(found[value] - expected) < 5 * math.sqrt(expected) + 5, value


@pytest.mark.parametrize("size", [0, 1, 7])
def test_of_any_size_and_any_spread(size: int) -> None:
    """Where fractions need more than 63 bits, too."""
    for spread in (1, 2, 4837**2, 10**14, 1 << 55):
        for draws in (discrete_laplaces(size, spread), discrete_gaussians(size, (spread - 1) ** 2 + 1)):
            assert (draws.shape, draws.dtype) == ((size,), np.int64)


def test_every_word_gets_noise_of_the_plan() -> None:
    plan = MarginalPlan(max_words=2, max_weight=1.0, epsilon=4.0, trust="local")
    scale = local_scale(plan)
    assert scale == math.ceil(contributions.l1_sensitivity(plan) / plan.epsilon) == 128
    noisy = locally_noised({3: 256}, 4000, plan)
    assert set(noisy) <= set(range(4000))
    assert len(noisy) > 3900, "words without counts are noised too"
    deviation = math.sqrt(sum(count * count for word, count in noisy.items() if word != 3) / 4000)
    assert abs(deviation / (math.sqrt(2) * scale) - 1) < 0.15


@pytest.mark.parametrize("survivors", [1, 10])
def test_shares_of_the_smallest_cohort_are_the_whole_noise(survivors: int) -> None:
    plan = MarginalPlan(trust="distributed", mechanism="discrete_gaussian", minimum_survivors=survivors)
    words = 400
    reports = [locally_noised({7: 256}, words, plan) for _ in range(survivors)]
    total = np.array([sum(report.get(word, 0) for report in reports) for word in range(words)])
    total[7] -= 256 * survivors
    assert share_variance(plan) == -(-gaussian_variance(plan) // survivors)
    assert total.std() == pytest.approx(math.sqrt(gaussian_variance(plan)), rel=5 / math.sqrt(2 * words))
    assert share_variance(plan.model_copy(update={"trust": "local", "minimum_survivors": 1})) == gaussian_variance(plan)


def test_what_cannot_be_drawn_is_refused() -> None:
    plan = MarginalPlan(trust="distributed", mechanism="discrete_gaussian", minimum_survivors=1000, epsilon=20)
    with pytest.raises(PrivacyError, match="minimum_survivors: found 1000"):
        share_variance(plan.model_copy(update={"max_words": 1}))
    with pytest.raises(PrivacyError, match="trust: found central"):
        locally_noised({}, 3, MarginalPlan())
    for refused, why in (
        (lambda: discrete_laplace(0), "scale: found 0"),
        (lambda: discrete_laplaces(3, 0), "scale: found 0"),
        (lambda: discrete_gaussian(0), "variance: found 0"),
        (lambda: discrete_gaussians(3, 0), "variance: found 0"),
        (
            lambda: discrete_laplaces(7, (1 << 55) + 1),
            r"noise: found a scale of 3.6e\+16 units, expected at most 2\^55",
        ),
        (lambda: discrete_laplaces(0, (1 << 55) + 1), r"expected at most 2\^55"),
        (lambda: discrete_gaussians(0, 1 << 111), r"expected at most 2\^55"),
    ):
        with pytest.raises(PrivacyError, match=why):
            refused()
