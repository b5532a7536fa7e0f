"""What the server of the simulation publishes."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.wire.messages import MarginalPlan
from examples.liu_2020.adaptation import Bounded, Exact, Paper, Personal, begin, plan_for, user_epsilon

BACKGROUND = np.array([0.1, 0.2, 0.3, 0.4])


def device(*counts: float) -> Personal:
    held = np.array(counts)
    return Personal(held, held)


def test_equation_6_by_hand() -> None:
    """Ten words of one client, thirty of another, no smoothing: what both said over forty."""
    devices = [device(5, 5, 0, 0), device(3, 9, 18, 0)]
    assert Exact(BACKGROUND, 0.0).publish(devices) == pytest.approx([0.2, 0.35, 0.45, 0.0])
    assert Exact(BACKGROUND, 0.0).publish([begin(4)]) is None, "nobody said anything"


def test_smoothing_draws_each_client_to_the_background() -> None:
    """One client with ten words and ten pseudo-words: half its own, half the background."""
    assert Exact(BACKGROUND, 10.0).publish([device(10, 0, 0, 0)]) == pytest.approx([0.55, 0.1, 0.15, 0.2])


def test_the_papers_noise_vanishes_with_a_large_epsilon_and_outweighs_with_a_small_one() -> None:
    devices = [device(5, 5, 0, 0), device(3, 9, 18, 0)]
    assert Paper(BACKGROUND, 0.0, 1e6).publish(devices) == pytest.approx([0.2, 0.35, 0.45, 0.0], abs=1e-3)
    drawn = [Paper(BACKGROUND, 0.0, 1e-3).publish(devices) for _ in range(40)]
    assert any(found is None for found in drawn) and any(found is not None for found in drawn)
    for found in drawn:
        assert found is None or (found.min() >= 0 and found.sum() == pytest.approx(1))


def test_the_default_adds_up_bounded_counts_over_rounds() -> None:
    server = Bounded(BACKGROUND, MarginalPlan(max_words=1, max_weight=1.0, epsilon=1e6), smoothing=1.0)
    first = server.publish([device(5, 1, 0, 0), device(0, 9, 2, 0)])
    assert first == pytest.approx((np.array([1, 1, 0, 0]) + BACKGROUND) / 3, abs=1e-3)
    second = server.publish([device(7, 1, 0, 0), begin(4)])
    assert second == pytest.approx((np.array([2, 1, 0, 0]) + BACKGROUND) / 4, abs=1e-3)


def test_what_lies_within_the_noise_is_suppressed() -> None:
    server = Bounded(BACKGROUND, MarginalPlan(epsilon=0.01), suppression=50.0)
    assert server.publish([device(1, 1, 0, 0)]) == pytest.approx(BACKGROUND)
    once = server.variance
    assert server.publish([device(1, 1, 0, 0)]) == pytest.approx(BACKGROUND)
    assert once == pytest.approx(2 * (20 / 0.01) ** 2, rel=1e-3) and server.variance == pytest.approx(2 * once)


def test_a_plan_costs_a_user_what_it_says_and_hardly_less() -> None:
    plan = plan_for(4.0, 10)
    assert 3.9 < user_epsilon(plan, 10) <= 4.0
    assert plan.epsilon > 0.4, "composed by privacy loss distributions, ten releases cost less than ten times one"
    assert (plan.max_words, plan.max_weight, plan.trust) == (20, 1.0, "central")
