import json
import math
from dataclasses import asdict

import pytest

from device_sdk import ConfigurationError, OfferBounds
from device_sdk.privacy.gaussian import gaussian_epsilon
from device_sdk.privacy.spending import Spent, cost_of, epsilon_of, stated
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan

DELTA = 1e-6


def rounds(cost: Spent, number: int) -> Spent:
    total = Spent()
    for _ in range(number):
        total = total.plus(cost)
    return total


@pytest.mark.parametrize("mechanism", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize(("epsilon", "number"), [(1.0, 1), (1.0, 10), (1.0, 300), (0.1, 100), (5.0, 4)])
def test_counts_cost_what_the_servers_accountant_says(mechanism: str, epsilon: float, number: int) -> None:
    composition = pytest.importorskip("server.privacy.composition")
    from server.plans.round import RoundSettings
    from server.privacy.charges import charge_for

    plan = MarginalPlan.model_validate({"epsilon": epsilon, "mechanism": mechanism})
    charge = charge_for("marginals", RoundSettings(marginals=plan))
    exact = composition.compose(composition.Spent({charge: number}), DELTA)[0]
    assert exact * 0.999 <= epsilon_of(rounds(cost_of(plan), number), DELTA) <= 1.35 * exact + 0.1


@pytest.mark.parametrize("number", [1, 7, 400])
@pytest.mark.parametrize("ratio", [0.05, 1.0, 30.0])
def test_deltas_cost_no_less_than_gaussian_noise_does(ratio: float, number: int) -> None:
    cost = cost_of(DeltaPlan(clip_norm=ratio, noise_stddev=1.0), 1)
    exact = gaussian_epsilon(ratio * math.sqrt(number), DELTA)
    assert exact <= epsilon_of(rounds(cost, number), DELTA) <= 1.35 * exact + 0.1


def test_noise_of_others_counts_only_where_the_app_says_so() -> None:
    plan = DeltaPlan(clip_norm=1.0, noise_stddev=0.1)
    alone, among = (epsilon_of(cost_of(plan, cohort), DELTA) for cohort in (1, 100))
    assert among == pytest.approx(epsilon_of(cost_of(DeltaPlan(clip_norm=1.0, noise_stddev=1.0), 1), DELTA))
    assert alone > 5 * among


def test_what_has_no_bound_has_none() -> None:
    for cost in (
        cost_of(MarginalPlan(mode="paper")),
        cost_of(DeltaPlan(), 1),
        cost_of(DeltaPlan(noise_stddev=1.0, measure="loss"), 1),
    ):
        assert epsilon_of(Spent().plus(cost), DELTA) == math.inf
    assert epsilon_of(Spent(), DELTA) == 0.0
    named = rounds(cost_of(WordPlan(epsilon=1.0, delta=4e-7)), 2)
    assert epsilon_of(named, DELTA) == 2.0
    assert epsilon_of(named.plus(cost_of(WordPlan(epsilon=1.0, delta=4e-7))), DELTA) == math.inf


def test_it_is_kept_and_taken_back() -> None:
    one, other = cost_of(MarginalPlan()), cost_of(MarginalPlan(mode="paper"))
    total = one.plus(one)
    assert Spent.read(json.loads(json.dumps(asdict(total)))) == total
    assert Spent.read(json.loads(json.dumps(asdict(other)))) == other
    assert epsilon_of(total.without(one), DELTA) == pytest.approx(epsilon_of(one, DELTA))
    assert other.without(other) == other, "no bound comes back"
    for changed in ({"simple": -1.0}, {"simple": math.nan}, {"renyi": [1.0]}, {"renyi": None}, {"delta": "much"}):
        with pytest.raises((ValueError, TypeError)):
            Spent.read(asdict(one) | changed)


@pytest.mark.parametrize(
    "changes",
    [{"max_words": 0}, {"clip_norm": math.nan}, {"least_noise": -1.0}, {"delta": 1.0}, {"cohort": 0}, {"cohort": 1.5}],
)
def test_impossible_bounds_are_named(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=r"bounds\..*" + next(iter(changes))):
        OfferBounds(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epsilon", "said"),
    [
        *((0.0, "0"), (3.4762, "3.476"), (100.0, "100"), (100.1, "none (1e+02)"), (8e8, "none (8e+08)")),
        *((math.inf, "none (infinite)"), ("Infinity", "none (infinite)")),
    ],
)
def test_what_bounds_nothing_is_called_none(epsilon: float | str, said: str) -> None:
    assert stated(epsilon) == said
