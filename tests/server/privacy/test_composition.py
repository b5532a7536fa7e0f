"""Composition by privacy loss against exact sums over outputs, against dp-accounting and against what may be added up;
amplified by sampling; over hundreds and thousands of rounds; and plans calibrated by it."""

import math
import time
import tracemalloc
from dataclasses import replace
from itertools import pairwise, product

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import fftconvolve

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_epsilon
from device_sdk.privacy.quantised import squared_sensitivity, step_variance
from device_sdk.wire.messages import DeltaPlan, MarginalPlan, WordPlan
from server.plans.round import RoundSettings
from server.privacy.charges import Charge, charge_for
from server.privacy.composition import Spent, compose, exchange, quick_bound
from server.privacy.costs import calibrate, calibrate_shares

DELTA = 1e-6


def smallest_delta(outputs: np.ndarray, neighbours: np.ndarray, epsilon: float) -> float:
    """The smallest delta for which equation 7 of Liu & Peng 2020 holds for adjacent data sets, in this direction.

        P(M(d) in S) <= e^epsilon P(M(d') in S) + delta  for every set S of outputs

    The worst S is where P(M(d)) exceeds e^epsilon P(M(d')). outputs, neighbours: p and p', of the same outputs."""
    return float(np.maximum(outputs - np.exp(epsilon) * neighbours, 0.0).sum())


def laplace(epsilon: float, words: int = 1, weight: int = 1) -> Charge:
    return Charge("discrete_laplace", "central", weight, words * weight / epsilon, words, epsilon=epsilon)


def gaussian(deviation: float, words: int = 1, weight: int = 1) -> Charge:
    ratio = words * weight**2 / deviation**2
    return Charge("discrete_gaussian", "central", weight, deviation, words, squared_ratio=ratio)


def sampled(z: float, q: float) -> Charge:
    return Charge("gaussian", "central", 1.0, z, squared_ratio=z**-2, sampling=q)


def outputs(charge: Charge, shift: int, half: int = 300) -> np.ndarray:
    spread = np.abs(np.arange(-half, half + 1) - shift) / charge.scale
    weights = np.exp(-spread if charge.mechanism == "discrete_laplace" else -(spread**2) / 2)
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("charge", [laplace(0.8, 2), laplace(2.0, 2, 3), gaussian(3.0, 2), gaussian(5.0, 2, 4)])
def test_two_words_against_the_whole_joint_distribution(charge: Charge) -> None:
    """Every outcome of two noised counts, summed: equation 7 of Liu & Peng 2020 at the epsilon that is stated."""
    pair = [np.outer(outputs(charge, shift), outputs(charge, shift)).ravel() for shift in (0, int(charge.sensitivity))]
    delta = 1e-4
    epsilon, _ = compose(Spent({charge: 1}), delta)
    assert smallest_delta(*pair, epsilon) <= delta
    assert smallest_delta(*pair, epsilon * 0.99) > delta, "and at no smaller one"


def test_a_smaller_change_tells_less() -> None:
    """The whole weight on every word is the worst a report can be."""
    for charge in (laplace(1.0, 2, 4), gaussian(4.0, 2, 4)):
        epsilon, _ = compose(Spent({charge: 1}), 1e-4)
        zero = np.outer(outputs(charge, 0), outputs(charge, 0)).ravel()
        for first, second in product(range(5), range(5)):
            other = np.outer(outputs(charge, first), outputs(charge, second)).ravel()
            assert max(smallest_delta(zero, other, epsilon), smallest_delta(other, zero, epsilon)) <= 1e-4 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (Spent(), (0.0, 0.0)),
        (Spent({laplace(3.0): 1}), (3.0, 0.0)),
        (Spent({Charge("gaussian", "share", 2.0, 1.0, squared_ratio=4.0): 1}), (gaussian_epsilon(2.0, DELTA), DELTA)),
        (Spent({Charge("none", "none", 1.0, 0.0, unbounded=True): 1, laplace(1.0): 2}), (math.inf, 0.0)),
        (Spent({laplace(math.nan): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), squared_ratio=-1.0): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), mechanism="sorcery"): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), coordinates=0): 1}), (math.inf, 0.0)),
        (Spent({replace(laplace(1.0), delta=DELTA): 1}), (math.inf, 0.0)),
        (Spent({laplace(1e8): 2}), (2e8, 0.0)),
        *((Spent({sampled(1.0, q): 1}), (math.inf, 0.0)) for q in (0.0, -0.1, 1.1, math.nan)),
    ],
)
def test_single_lines(total: Spent, expected: tuple[float, float]) -> None:
    """What makes no sense, or fails more often than asked for, counts as infinite."""
    found = compose(total, DELTA)
    assert found[0] == pytest.approx(expected[0], rel=1e-3) and found[1] in (expected[1], DELTA)


def test_exchanged_moves_twice_as_much() -> None:
    counts, shares, delta = exchange(
        [laplace(1.0, 20), gaussian(9.0, 20), Charge("gaussian", "x", 1.0, 2.0, squared_ratio=0.25)]
    )
    assert (counts.coordinates, counts.epsilon) == (40, 2.0)
    assert (shares.coordinates, shares.squared_ratio) == (40, pytest.approx(40 / 81))
    assert (delta.sensitivity, delta.squared_ratio) == (2.0, 1.0)
    assert exchange([replace(laplace(1.0), delta=1e-7)])[0].delta == pytest.approx(1e-7 * (1 + math.e))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.05, 5), st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=3))
def test_never_more_than_what_adds_up_and_never_less_with_more(lines: list[tuple[float, int, int]]) -> None:
    total = Spent({laplace(epsilon, words, 8): times for epsilon, words, times in lines})
    epsilon, _ = compose(total, DELTA)
    assert epsilon <= quick_bound(total, DELTA) * (1 + 1e-9)
    assert compose(total.plus(laplace(0.5, 20, 8)), DELTA)[0] >= epsilon * (1 - 1e-6)


@pytest.mark.parametrize("q", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("replaced", [False, True])
def test_all_words_of_a_report_are_sampled_together(q: float, replaced: bool) -> None:
    """Every outcome of two noised counts that come or stay away together. As if each word were sampled on its own,
    less would be stated than is lost."""
    charge = replace(laplace(1.6, 2), sampling=q)
    without, reported, other = (
        np.outer(outputs(charge, shift), outputs(charge, shift)).ravel() for shift in (0, 1, -1)
    )
    mixture = (1 - q) * without + q * reported
    neighbour = (1 - q) * without + q * other if replaced else without
    epsilon, _ = compose(Spent({exchange([charge])[0] if replaced else charge: 1}), 1e-4)
    pairs = (mixture, neighbour), (neighbour, mixture)
    assert max(smallest_delta(*pair, epsilon) for pair in pairs) <= 1e-4
    if not replaced:  # the bound on exchanged reports is not tight
        assert max(smallest_delta(*pair, 0.99 * epsilon - 1e-3) for pair in pairs) > 1e-4


def test_sampling_saves_and_never_adds() -> None:
    for charge in (sampled(1.0, 0.1), replace(laplace(1.0, 20, 256), sampling=0.1)):
        for rounds in (1, 10):
            whole = Spent({replace(charge, sampling=1.0): rounds})
            assert compose(Spent({charge: rounds}), DELTA)[0] < 0.7 * compose(whole, DELTA)[0]
            nearly = Spent({replace(charge, sampling=0.999): rounds})
            assert compose(nearly, DELTA)[0] <= compose(whole, DELTA)[0] * (1 + 1e-3)


@pytest.mark.parametrize(
    "charges",
    [
        (sampled(1.0, 0.01), laplace(0.5)),
        (laplace(1.0, 20, 256), gaussian(4837.0, 20, 256), Charge("gaussian", "share", 1.0, 5.0, squared_ratio=0.04)),
    ],
)
def test_different_charges_compose(charges: tuple[Charge, ...]) -> None:
    parts = [compose(Spent({charge: 3}), DELTA / len(charges))[0] for charge in charges]
    assert max(parts) < compose(Spent(dict.fromkeys(charges, 3)), DELTA)[0] <= sum(parts) * (1 + 1e-9)


def test_what_noise_hides_too_little_is_stated_without_sampling() -> None:
    total = Spent({sampled(0.01, 0.1): 1})
    assert compose(total, DELTA)[0] == quick_bound(total, DELTA) > 500


ROUNDS = (499, 500, 501, 502, 1000, 3000)
COUNTS = charge_for("marginals", RoundSettings(marginals=MarginalPlan()))
GAUSSIAN_COUNTS = charge_for("marginals", RoundSettings(marginals=MarginalPlan(mechanism="discrete_gaussian")))
# A threshold that fails so seldom that it may over thousands of rounds.
WORDS = charge_for("words", RoundSettings(marginals=None, words=WordPlan(delta=1e-11)))
DELTAS = charge_for(
    "deltas", RoundSettings(marginals=None, deltas=DeltaPlan(), noise_multiplier=2.0, weighting="uniform", goal=9)
)
SAMPLED = sampled(1.0, 0.01)
CHARGES = {"counts": COUNTS, "gaussian counts": GAUSSIAN_COUNTS, "words": WORDS, "deltas": DELTAS, "sampled": SAMPLED}


def independent(charge: Charge, *, pessimistic: bool) -> PrivacyLossDistribution:
    """One report, as dp-accounting has it without anything of ours: above the truth, or below it."""
    how = {"value_discretization_interval": 5e-4, "pessimistic_estimate": pessimistic, "use_connect_dots": pessimistic}
    build, scale, moved = getattr(pld, f"from_{charge.mechanism}_mechanism"), charge.scale, charge.sensitivity
    arguments = {"discrete_laplace": (1 / scale, int(moved)), "discrete_gaussian": (scale, int(moved))}
    one = build(*arguments.get(charge.mechanism, (scale, moved)), sampling_prob=charge.sampling, **how)
    return one.self_compose(charge.coordinates) if charge.coordinates > 1 else one


@pytest.mark.parametrize("name", CHARGES)
def test_epsilon_grows_smoothly_with_the_rounds(name: str) -> None:
    """No jump where sums take the place of distributions: a round costs no more than the first one did."""
    charge = CHARGES[name]
    found = [compose(Spent({charge: rounds}), DELTA)[0] for rounds in ROUNDS]
    assert all(0 < after - before < 0.01 * found[0] for before, after in pairwise(found[:4])), found
    assert found == sorted(found)
    assert found[-1] < 6 * found[0], "six times the rounds cost less than six times as much"


LAPLACE = Charge("discrete_laplace", "central", 3, 6.0, 1, epsilon=0.5, sampling=0.1)
CASES = [*product(CHARGES.values(), (10, *ROUNDS)), (LAPLACE, 20)]
CASES += [(sampled(z, q), n) for z, q, n in ((20.0, 1.0, 1), (1.0, 1.0, 9), (0.6, 0.001, 3000), (1.0, 0.5, 5))]


@pytest.mark.parametrize(("charge", "rounds"), CASES)
def test_many_rounds_cost_what_dp_accounting_says(charge: Charge, rounds: int) -> None:
    spare = DELTA - rounds * charge.delta
    stated = compose(Spent({charge: rounds}), DELTA)[0]
    above, below = (
        independent(charge, pessimistic=way).self_compose(rounds).get_epsilon_for_delta(spare) for way in (True, False)
    )
    assert below * (1 - 1e-9) <= stated <= above * 1.01, "never below the truth, and within a hundredth of it"


def test_a_history_of_several_mechanisms_grows_smoothly_too() -> None:
    histories = ({COUNTS: n, GAUSSIAN_COUNTS: n, SAMPLED: n} for n in (*range(380, 450, 10), 1000))
    found = [compose(Spent(history), DELTA)[0] for history in histories]
    assert found == sorted(found) and found[-2] < 1.2 * found[0]


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


@pytest.mark.parametrize("mechanism", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 1), (1.0, 10), (8.0, 10), (2.0, 300)])
def test_rounds_cost_what_is_wanted(mechanism: str, epsilon: float, rounds: int) -> None:
    plan = calibrate(MarginalPlan.model_validate({"mechanism": mechanism}), epsilon, rounds)
    spent = compose(Spent({charge_for("marginals", RoundSettings(marginals=plan)): rounds}), plan.delta)[0]
    assert 0.985 * epsilon < spent <= epsilon


def test_what_cannot_be_calibrated_is_named() -> None:
    with pytest.raises(PrivacyError, match="mode: found paper"):
        calibrate(MarginalPlan(mode="paper"), 1.0, 10)
    with pytest.raises(PrivacyError, match="user_epsilon"):
        calibrate(MarginalPlan(), 0.0, 10)


def masked(stddev: float, survivors: int = 2, bits: int = 10) -> DeltaPlan:
    own = {"trust": "distributed", "minimum_survivors": survivors, "bits": bits}
    return DeltaPlan.model_validate(own | {"noise_stddev": stddev})


def charge_of(plan: DeltaPlan) -> Charge:
    few = {"minimum": plan.minimum_survivors, "goal": plan.minimum_survivors, "weighting": "uniform"}
    return charge_for("deltas", RoundSettings(marginals=None, deltas=plan, **few))


@pytest.mark.parametrize(("stddev", "survivors"), [(0.25, 2), (1.0, 2), (1.0, 5), (4.0, 3)])
def test_masked_deltas_cost_no_more_than_is_printed(stddev: float, survivors: int) -> None:
    """The exact sum of so many discrete Gaussians, with and without a vector as long as rounding may leave one."""
    plan = masked(stddev, survivors)
    variance, shift = step_variance(plan), math.isqrt(squared_sensitivity(plan))
    half = math.ceil(9 * math.sqrt(survivors * variance)) + shift
    share = np.exp(-np.square(np.arange(-half, half + 1.0)) / (2 * variance))
    total = share = share / share.sum()
    for _ in range(survivors - 1):
        total = np.maximum(fftconvolve(total, share, mode="same"), 0.0)
    pair = total[:-shift], total[shift:]
    for delta in (1e-3, 1e-6):
        epsilon = compose(Spent({charge_of(plan): 1}), delta)[0]
        assert max(smallest_delta(*pair, epsilon), smallest_delta(*pair[::-1], epsilon)) <= delta
        assert smallest_delta(*pair, 0.8 * epsilon) > delta, "and at no much smaller one"


@pytest.mark.parametrize("rounds", [1, 10, 1000])
def test_masked_deltas_are_accounted_by_renyi_divergences(rounds: int) -> None:
    """As dp-accounting converts those of the Gaussian mechanism of this ratio, which they never exceed."""
    charge = charge_of(masked(0.75, 34, 14))
    event = dp_accounting.GaussianDpEvent(1 / math.sqrt(charge.squared_ratio))
    expected = RdpAccountant(np.geomspace(1.01, 500, 400)).compose(event, rounds).get_epsilon(DELTA)
    found = compose(Spent({charge: rounds}), DELTA)[0]
    assert found == pytest.approx(expected, rel=1e-3)
    assert gaussian_epsilon(math.sqrt(rounds * charge.squared_ratio), DELTA) < found


def test_masked_deltas_beside_others_and_exchanged() -> None:
    charge, open_noise = charge_of(masked(0.75, 34, 14)), sampled(4.0, 1.0)
    alone = compose(Spent({charge: 3}), DELTA)[0]
    both = compose(Spent({charge: 3, open_noise: 3}), DELTA)[0]
    assert alone < both < alone + compose(Spent({open_noise: 3}), DELTA)[0]
    (other,) = exchange([charge])
    assert other.squared_ratio == 4 * charge.squared_ratio and other.coordinates == 1
    assert charge_of(masked(0.0)).unbounded and math.isinf(compose(Spent({charge_of(masked(0.0)): 1}), DELTA)[0])


@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 1), (2.0, 300), (50.0, 1)])
def test_shares_cost_what_is_wanted(epsilon: float, rounds: int) -> None:
    plan = calibrate_shares(masked(0.0, 20, 14), epsilon, rounds)
    assert 0.99 * epsilon < compose(Spent({charge_of(plan): rounds}), DELTA)[0] <= epsilon
    with pytest.raises(PrivacyError, match="user_epsilon"):
        calibrate_shares(plan, 0.0, 10)
