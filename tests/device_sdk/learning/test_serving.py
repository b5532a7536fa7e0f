"""Sampled serving, and what REINFORCE makes of it on average."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import ConfigurationError
from device_sdk.hypothesis import Hypothesis, Result, Scores
from device_sdk.learning.objectives import expected_cost, posterior, reinforce, running_mean, serve
from device_sdk.learning.settings import LearningSettings

ACOUSTIC = [-2.0, -1.0, -3.5]
RESULT = Result(
    "u1",
    tuple(
        Hypothesis((index + 1,), f"text {index}", (), Scores(acoustic), score=-float(index))
        for index, acoustic in enumerate(ACOUSTIC)
    ),
    1.0,
)


def test_the_best_is_served_as_it_is() -> None:
    assert serve(RESULT, "best", np.random.default_rng(0)) is RESULT
    assert RESULT.probability == 1.0


def test_samples_follow_the_normalized_list() -> None:
    generator, p = np.random.default_rng(4), posterior(ACOUSTIC)
    counts = np.zeros(3)
    for _ in range(3000):
        result = serve(RESULT, "sampled", generator)
        first = RESULT.nbest.index(result.nbest[0])
        counts[first] += 1
        assert result.probability == pytest.approx(p[first])
        assert result.nbest[1:] == tuple(each for each in RESULT.nbest if each is not result.nbest[0])
        assert result.text == f"text {first}"
    np.testing.assert_allclose(counts / 3000, p, atol=4 * np.sqrt(0.25 / 3000))


@pytest.mark.parametrize("baseline", [0.0, 0.4, 1.0])
def test_sampled_reinforce_is_the_gradient_of_the_expected_cost(baseline: float) -> None:
    """Through log p of the normalized list, which is -NLL_i + log sum: the mean over samples is that of equation 1."""
    p, costs = posterior(ACOUSTIC), np.array([1.0, 0.0, 0.5])
    tokens = [hypothesis.tokens for hypothesis in RESULT.nbest]
    exact = p * (float(p @ costs) - costs)
    assert expected_cost(tokens, costs).cost_scale == 1.0
    generator, total = np.random.default_rng(9), np.zeros(3)
    for _ in range(4000):
        result = serve(RESULT, "sampled", generator)
        first = RESULT.nbest.index(result.nbest[0])
        weight = float(reinforce(result.nbest[0].tokens, costs[first], baseline).weights[0])
        score = -np.eye(3)[first] + p  # d log p(served) / d NLL
        total += -weight * score
    np.testing.assert_allclose(total / 4000, exact, atol=0.04)


def test_the_baseline_runs_or_stays() -> None:
    mean = 0.0
    for cost in (1.0, 0.0, 1.0, 1.0):
        mean = running_mean(mean, cost, 0.5)
    assert mean == 0.8125
    assert running_mean(0.3, 1.0, 1.0) == 0.3
    for change in ({"serving": "first"}, {"labels": "none"}, {"baseline_decay": 1.5}, {"supervision_weight": -1.0}):
        with pytest.raises(ConfigurationError, match=f"learning.{next(iter(change))}"):
            LearningSettings(**change)
