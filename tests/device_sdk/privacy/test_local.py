from __future__ import annotations

import math
from collections import Counter

from device_sdk.privacy.contributions import l1_sensitivity
from device_sdk.privacy.local import discrete_laplace, local_scale, locally_noised
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
