import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import LearningError
from device_sdk.hypothesis import Hypothesis, Result, Scores
from device_sdk.learning.objectives import Objective, expected_cost, label, posterior, reinforce, serve, total


def loss(objective: Objective, nll: dict[tuple[int, ...], float]) -> float:
    """The scalar that the training graph differentiates, in plain float64."""
    values = np.array([nll[hypothesis] for hypothesis in objective.hypotheses])
    p = np.exp(-values) / np.exp(-values).sum()
    return float(objective.weights @ values + objective.cost_scale * (p @ objective.costs))


def gradient(objective: Objective, nll: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """Central differences of ``loss`` over each hypothesis' NLL."""
    return {
        each: (loss(objective, nll | {each: nll[each] + 1e-5}) - loss(objective, nll | {each: nll[each] - 1e-5})) / 2e-5
        for each in objective.hypotheses
    }


HYPOTHESES = [(1,), (1, 2), (2, 3), ()]
nlls = st.lists(st.floats(0.1, 8.0), min_size=4, max_size=4).map(lambda v: dict(zip(HYPOTHESES, v, strict=True)))
costs = st.lists(st.floats(0, 1), min_size=4, max_size=4)
scales = st.floats(0.1, 3.0)


@given(nlls, costs, scales)
def test_expected_cost_has_the_gradient_of_equation_1(nll, cost, scale) -> None:
    objective = expected_cost([*HYPOTHESES, HYPOTHESES[0]], [*cost, 1.0], scale)  # the same pieces twice count once
    p = posterior([-nll[hypothesis] for hypothesis in HYPOTHESES])
    mean = float(p @ np.array(cost))
    found = gradient(objective, nll)
    for index, hypothesis in enumerate(HYPOTHESES):
        assert found[hypothesis] == pytest.approx(scale * p[index] * (mean - cost[index]), abs=1e-5)


def test_signs() -> None:
    assert label((1, 2)).weights.tolist() == [1.0] and label([1, 2], 0.5).weights.tolist() == [0.5]
    assert reinforce((1,), cost=1.0).weights.tolist() == [-1.0], "a costly hypothesis becomes less likely"
    assert reinforce((1,), cost=0.0, baseline=0.25, scale=2.0).weights.tolist() == [0.5]


@given(nlls, costs, costs, scales, scales)
def test_losses_add(nll, first, second, c1, c2) -> None:
    parts = [expected_cost(HYPOTHESES, first, c1), expected_cost(HYPOTHESES, second, c2), label((2, 3), 0.5)]
    parts.append(reinforce((1,), 0.7, 0.2))
    summed = total(parts)
    assert loss(summed, nll) == pytest.approx(sum(loss(part, nll) for part in parts), rel=1e-4, abs=1e-4)
    assert summed.hypotheses == tuple(HYPOTHESES)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: expected_cost([(1,)], [0.0], -1.0), "scale"),
        (lambda: label((9,)) + expected_cost([(1,), (2,)], [0, 1]), "over 2 hypotheses added to a loss that names 3"),
        (lambda: Objective(((1,), (1,)), np.zeros(2, np.float32), np.zeros(2, np.float32)), "twice"),
        (lambda: Objective(((1,),), np.zeros(2, np.float32), np.zeros(1, np.float32)), "weights"),
        (lambda: Objective(((1,),), np.zeros(1, np.float32), np.full(1, np.nan, np.float32)), "costs"),
    ],
)
def test_impossible_losses_are_refused(make, words: str) -> None:
    with pytest.raises(LearningError, match=words):
        make()


def test_posterior_survives_large_scores() -> None:
    np.testing.assert_allclose(posterior([-1000.0, -1000.0]), [0.5, 0.5])
    assert posterior([0.0, -np.inf]).tolist() == [1.0, 0.0]


ACOUSTIC = [-2.0, -1.0, -3.5]
SERVED = tuple(
    Hypothesis((index + 1,), f"text {index}", (), Scores(acoustic), score=-float(index))
    for index, acoustic in enumerate(ACOUSTIC)
)
RESULT = Result("u1", SERVED, 1.0)


def test_the_best_is_served_as_it_is_and_samples_follow_the_normalized_list() -> None:
    assert serve(RESULT, "best", np.random.default_rng(0)) is RESULT and RESULT.probability == 1.0
    generator, p, counts = np.random.default_rng(4), posterior(ACOUSTIC), np.zeros(3)
    for _ in range(3000):
        result = serve(RESULT, "sampled", generator)
        first = SERVED.index(result.nbest[0])
        counts[first] += 1
        assert result.probability == pytest.approx(p[first]) and result.text == f"text {first}"
        assert result.nbest[1:] == tuple(each for each in SERVED if each is not result.nbest[0])
    np.testing.assert_allclose(counts / 3000, p, atol=4 * np.sqrt(0.25 / 3000))
