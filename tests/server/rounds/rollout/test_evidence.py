"""The test of a rollout, against counting every way that failures may fall, and how often it is wrong."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.plans.round import RolloutSettings
from server.rounds.rollout.evidence import Evidence, Watched, judge_evidence, upper_tail

ARM = st.integers(1, 60).flatmap(lambda devices: st.tuples(st.just(devices), st.integers(0, devices)))


def of(rollout: tuple[int, int], control: tuple[int, int]) -> Evidence:
    return Evidence(Watched(*rollout), Watched(*control))


@given(ARM, ARM)
def test_the_tail_is_that_of_fishers_exact_test(rollout: tuple[int, int], control: tuple[int, int]) -> None:
    failed, every = rollout[1] + control[1], comb(rollout[0] + control[0], rollout[1] + control[1])
    ways = sum(comb(rollout[0], k) * comb(control[0], failed - k) for k in range(rollout[1], failed + 1))
    assert upper_tail(of(rollout, control)) == pytest.approx(float(Fraction(ways, every)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("rollout", "control", "looks", "seconds", "decision", "after"),
    [
        ((3, 3), (9, 0), 0, 1e9, "wait", 0),  # too few
        ((9, 9), (3, 0), 0, 1e9, "wait", 0),
        ((4, 4), (4, 0), 0, 0.0, "roll_back", 1),  # p = 1 / 70 against 0.1 / 4
        ((4, 3), (4, 0), 0, 0.0, "wait", 1),
        ((4, 4), (4, 0), 1, 0.0, "wait", 1),  # this look was taken
        ((7, 7), (7, 0), 1, 0.0, "wait", 1),
        ((8, 8), (8, 0), 1, 0.0, "roll_back", 2),
        ((40, 4), (40, 2), 4, 0.0, "wait", 4),
        ((40, 4), (40, 2), 4, 100.0, "promote", 4),
        ((40, 12), (40, 2), 4, 100.0, "roll_back", 4),
        ((4, 0), (4, 4), 1, 100.0, "promote", 1),  # better
    ],
)
def test_what_is_decided(rollout, control, looks: int, seconds: float, decision: str, after: int) -> None:
    settings = RolloutSettings(minimum=4, doubt=0.1, seconds=100.0)
    found = judge_evidence(of(rollout, control), settings, looks, seconds)
    assert (found.decision, found.looks) == (decision, after)
    if decision == "promote":  # an operator who promotes is not overtaken
        manual = settings.model_copy(update={"automatic": False})
        assert judge_evidence(of(rollout, control), manual, looks, seconds).decision == "wait"
    assert f"{rollout[1]} of {rollout[0]} devices failed" in found.note or decision == "wait"


def test_a_harmless_model_is_rarely_taken_back_and_a_harmful_one_mostly() -> None:
    """With a look after every device, 10 % of which fail anyway: at most ``doubt``, here 20 %, with room for chance."""
    rng = np.random.default_rng(5)
    settings = RolloutSettings(minimum=8, doubt=0.2, seconds=100.0)

    def taken_back(failing: float) -> float:
        wrong = 0
        for _ in range(300):
            lost = rng.random((2, 80)) < [[failing], [0.1]]
            looks = 0
            for seen in range(1, 81):
                failed = [(seen, int(arm[:seen].sum())) for arm in lost]
                verdict = judge_evidence(of(*failed), settings, looks, 100.0 * (seen == 80))
                looks = verdict.looks
                if verdict.decision == "roll_back":
                    wrong += 1
                    break
            else:
                assert verdict.decision == "promote"
        return wrong / 300

    assert taken_back(0.1) < 0.2 and taken_back(0.35) > 0.8
