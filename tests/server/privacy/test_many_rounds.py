"""Epsilon over hundreds and thousands of rounds: it grows smoothly, is what dp-accounting says, and takes no memory."""

from __future__ import annotations

import math
import time
import tracemalloc
from itertools import pairwise

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan
from server.plans.round import RoundSettings
from server.privacy.charges import Charge, charge_for
from server.privacy.composition import Spent, compose, quick_bound

DELTA = 1e-6
ROUNDS = (499, 500, 501, 502, 1000, 3000)
COUNTS = charge_for("marginals", RoundSettings(marginals=MarginalPlan()))
GAUSSIAN_COUNTS = charge_for("marginals", RoundSettings(marginals=MarginalPlan(mechanism="discrete_gaussian")))
# A threshold that fails so seldom that it may over thousands of rounds.
WORDS = charge_for("words", RoundSettings(marginals=None, words=WordPlan(delta=1e-11)))
DELTAS = charge_for(
    "deltas", RoundSettings(marginals=None, deltas=DeltaPlan(), noise_multiplier=2.0, weighting="uniform", goal=9)
)
SAMPLED = Charge("gaussian", "central", 1.0, 1.0, squared_ratio=1.0, sampling=0.01)
CHARGES = {"counts": COUNTS, "gaussian counts": GAUSSIAN_COUNTS, "words": WORDS, "deltas": DELTAS, "sampled": SAMPLED}


def independent(charge: Charge, *, pessimistic: bool) -> PrivacyLossDistribution:
    """One report, as dp-accounting has it without anything of ours: above the truth, or below it."""
    how = {"value_discretization_interval": 5e-4, "pessimistic_estimate": pessimistic, "use_connect_dots": pessimistic}
    scale, moved = charge.scale, charge.sensitivity
    one = {
        "discrete_laplace": lambda: pld.from_discrete_laplace_mechanism(1 / scale, int(moved), **how),
        "discrete_gaussian": lambda: pld.from_discrete_gaussian_mechanism(scale, int(moved), **how),
        "gaussian": lambda: pld.from_gaussian_mechanism(scale, moved, sampling_prob=charge.sampling, **how),
    }[charge.mechanism]()
    return one.self_compose(charge.coordinates) if charge.coordinates > 1 else one


@pytest.mark.parametrize("name", CHARGES)
def test_epsilon_grows_smoothly_with_the_rounds(name: str) -> None:
    """No jump where sums take the place of distributions: a round costs no more than the first one did."""
    charge = CHARGES[name]
    found = [compose(Spent({charge: rounds}), DELTA)[0] for rounds in ROUNDS]
    steps = [after - before for before, after in pairwise(found[:4])]
    assert all(0 < step < 0.01 * found[0] for step in steps), found
    assert found == sorted(found)
    assert found[-1] < 6 * found[0], "six times the rounds cost less than six times as much"


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("name", CHARGES)
def test_many_rounds_cost_what_dp_accounting_says(name: str, rounds: int) -> None:
    charge = CHARGES[name]
    spare = DELTA - rounds * charge.delta
    stated = compose(Spent({charge: rounds}), DELTA)[0]
    above, below = (
        independent(charge, pessimistic=way).self_compose(rounds).get_epsilon_for_delta(spare) for way in (True, False)
    )
    assert stated >= below * (1 - 1e-9), "never below the truth"
    assert stated <= above * 1.01, "and within a hundredth of it"


def test_a_history_of_several_mechanisms_grows_smoothly_too() -> None:
    found = [
        compose(Spent({COUNTS: rounds, GAUSSIAN_COUNTS: rounds, SAMPLED: rounds}), DELTA)[0]
        for rounds in (380, 390, 400, 410, 420, 430, 440, 1000)
    ]
    assert found == sorted(found)
    assert found[-2] < 1.2 * found[0]


def test_dear_rounds_take_neither_time_nor_memory() -> None:
    charge = charge_for("marginals", RoundSettings(marginals=MarginalPlan(epsilon=8.0)))
    compose(Spent({charge: 1}), DELTA)
    tracemalloc.start()
    begun = time.perf_counter()
    stated = compose(Spent({charge: 3000}), DELTA)[0]
    seconds, peak = time.perf_counter() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4600 < stated < 4700, "a fifth of the 24,000 that epsilons add up to"
    assert seconds < 5.0 and peak < 200e6


def test_the_bound_that_takes_no_time_knows_that_losses_average_out() -> None:
    assert 35 < quick_bound(Spent({COUNTS: 500}), DELTA) < 45
    assert quick_bound(Spent({COUNTS: 1}), DELTA) == pytest.approx(1.0)
    assert math.isinf(quick_bound(Spent({COUNTS: 1, WORDS: 10**6}), DELTA))
