from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from device_sdk.errors import PrivacyError
from device_sdk.privacy.contributions import l1_sensitivity
from device_sdk.privacy.local import gaussian_variance, local_scale, locally_noised, share_variance
from device_sdk.privacy.samplers import discrete_gaussian, discrete_laplace
from device_sdk.wire.messages import MarginalPlan


def test_the_draws_follow_the_discrete_laplace_distribution() -> None:
    scale, draws = 3, 30_000
    found = Counter(discrete_laplace(scale) for _ in range(draws))
    decay = math.exp(-1 / scale)
    for value in range(-6, 7):
        expected = draws * (1 - decay) / (1 + decay) * decay ** abs(value)
        assert abs(found[value] - expected) < 5 * math.sqrt(expected), value


def test_every_word_gets_noise_of_the_plan() -> None:
    plan = MarginalPlan(max_words=2, max_weight=1.0, epsilon=4.0, trust="local")
    scale = local_scale(plan)
    assert scale == math.ceil(l1_sensitivity(plan) / plan.epsilon) == 128
    noisy = locally_noised({3: 256}, 4000, plan)
    assert set(noisy) <= set(range(4000))
    assert len(noisy) > 3900, "words without counts are noised too"
    deviation = math.sqrt(sum(count * count for word, count in noisy.items() if word != 3) / 4000)
    assert abs(deviation / (math.sqrt(2) * scale) - 1) < 0.15


@pytest.mark.parametrize("variance", [1, 5])
def test_the_draws_follow_the_discrete_gaussian_distribution(variance: int) -> None:
    draws, values = 20_000, np.arange(-30, 31)
    weights = np.exp(-(values**2) / (2 * variance))
    found = Counter(discrete_gaussian(variance) for _ in range(draws))
    for value, expected in zip(values.tolist(), (draws * weights / weights.sum()).tolist(), strict=True):
        assert abs(found[value] - expected) < 5 * math.sqrt(expected) + 5, value


@pytest.mark.parametrize("survivors", [1, 10])
def test_shares_of_the_smallest_cohort_are_the_whole_noise(survivors: int) -> None:
    plan = MarginalPlan(trust="distributed", mechanism="discrete_gaussian", minimum_survivors=survivors)
    words = 400
    reports = [locally_noised({7: 256}, words, plan) for _ in range(survivors)]
    total = np.array([sum(report.get(word, 0) for report in reports) for word in range(words)])
    total[7] -= 256 * survivors
    assert share_variance(plan) == -(-gaussian_variance(plan) // survivors)
    assert total.std() == pytest.approx(math.sqrt(gaussian_variance(plan)), rel=5 / math.sqrt(2 * words))
    local = plan.model_copy(update={"trust": "local", "minimum_survivors": 1})
    assert share_variance(local) == gaussian_variance(plan)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(PrivacyError, match="minimum_survivors: found 1000"):
        share_variance(
            MarginalPlan(
                trust="distributed", mechanism="discrete_gaussian", minimum_survivors=1000, max_words=1, epsilon=20
            )
        )
    with pytest.raises(PrivacyError, match="trust: found central"):
        locally_noised({}, 3, MarginalPlan())
    with pytest.raises(PrivacyError, match="scale"):
        discrete_laplace(0)
    with pytest.raises(PrivacyError, match="variance"):
        discrete_gaussian(0)
