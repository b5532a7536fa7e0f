"""New words: the threshold against exact probabilities, what is released, what it costs."""

import math
from collections.abc import Iterable, Set
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import PrivacyError
from device_sdk.privacy.samplers import RandomBytes
from device_sdk.wire.messages import WordPlan
from server.privacy.new_words import devices_of, failure_chance, noise_scale, released_words, threshold
from server.privacy.noise import KEY_BYTES, key_stream
from tests.server.privacy.test_composition import smallest_delta


def plan_of(max_words: int = 5, epsilon: float = 1.0, delta: float = 1e-7) -> WordPlan:
    return WordPlan(max_words=max_words, epsilon=epsilon, delta=delta)


def released(contributions: Iterable[Set[str]], plan: WordPlan, *source: RandomBytes) -> dict[str, int]:
    return released_words(devices_of(contributions, {"cortado"}, plan), plan, *source)


def released_distribution(count: int, plan: WordPlan, least: int, reach: int = 400) -> np.ndarray:
    """Exact: chance of nothing, then of every noised count from the threshold on, so that the same place is the same
    outcome for every count."""
    values = np.arange(count - reach, count + reach + 1)
    decay = math.exp(-1 / float(noise_scale(plan)))
    chances = (1 - decay) / (1 + decay) * decay ** np.abs(values - count)
    passed = chances[values >= least] if count else np.zeros(0)
    whole = np.zeros(2 * reach)
    whole[1 : 1 + passed.size] = passed[: whole.size - 1]
    whole[0] = max(0.0, 1 - passed.sum())
    return whole


@pytest.mark.parametrize(("words", "epsilon", "delta"), [(1, 1.0, 1e-3), (2, 2.0, 1e-2), (2, 0.7, 1e-4)])
def test_one_device_against_equation_7(words: int, epsilon: float, delta: float) -> None:
    """A device that names words of its own, words that others named, or one of each: every outcome, both ways."""
    plan = plan_of(words, epsilon, delta)
    least = threshold(plan)
    for others in ([0] * words, [least] * words, [0, least][:words], [least - 1] * words):
        without, with_device = (
            [released_distribution(count + more, plan, least) for count in others] for more in (0, 1)
        )
        joint = [parts[0] if words == 1 else np.outer(*parts).ravel() for parts in (without, with_device)]
        for pair in (joint, joint[::-1]):
            assert smallest_delta(*pair, epsilon) <= delta * (1 + 1e-9), others


@given(st.integers(1, 50), st.floats(0.05, 10), st.floats(1e-12, 0.1))
def test_the_threshold_is_the_least_that_holds(words: int, epsilon: float, delta: float) -> None:
    plan = plan_of(words, epsilon, delta)
    least = threshold(plan)
    assert failure_chance(plan, least) <= delta
    assert least == 2 or failure_chance(plan, least - 1) > delta * (1 - 1e-9)
    about = 1 + float(noise_scale(plan)) * math.log(words / (2 * delta))
    assert least - about < 2 + float(noise_scale(plan)) * math.log(2)


def test_against_opendp() -> None:
    """Its own mechanism for unknown keys, which releases what is above its threshold, states the same."""
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    plan = plan_of(4, 1.0, 1e-6)
    domain = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T="u32"))
    distance = dp.l01inf_distance(dp.absolute_distance(T="u32"))
    scales = {"scale": float(noise_scale(plan)), "threshold": threshold(plan) - 1}
    epsilon, delta = dp.m.make_laplace_threshold(domain, distance, **scales).map((plan.max_words, plan.max_words, 1))
    assert epsilon == pytest.approx(plan.epsilon)
    assert delta == pytest.approx(failure_chance(plan, threshold(plan)), rel=1e-6)


def test_what_many_say_is_released_and_what_one_says_is_not() -> None:
    plan = plan_of(max_words=3, epsilon=1.0, delta=1e-9)
    devices = [{"flatwhite", "cortado", f"secret{'a' * (number % 40 + 1)}"} for number in range(400)]
    devices[0] = {"canary"}
    found = released(devices, plan)
    assert list(found) == ["flatwhite"] and abs(found["flatwhite"] - 399) < 60 and released([], plan) == {}


def test_words_of_one_device_pass_as_often_as_delta_allows() -> None:
    plan = plan_of(max_words=1, epsilon=1.0, delta=0.05)
    alone = [{"".join(chr(97 + int(digit)) for digit in f"{number:05d}")} for number in range(20_000)]
    passed = len(released(alone, plan)) / len(alone)
    expected = failure_chance(plan, threshold(plan))
    assert passed == pytest.approx(expected, abs=5 * math.sqrt(expected / len(alone))) and expected <= plan.delta


def test_a_key_draws_the_same_release_again_and_another_key_another() -> None:
    plan = plan_of(max_words=1, epsilon=0.05, delta=0.01)
    named = [{word} for word in ("latte", "mocha", "lungo") for _ in range(400)]
    found = [released(named, plan, key_stream(bytes([each]) * KEY_BYTES, "r1")) for each in (1, 1, 2)]
    assert found[0] == found[1] != found[2] and set(found[0]) == set(found[2]) == {"latte", "mocha", "lungo"}


@given(st.integers(1, 40), st.floats(1e-6, 100))
def test_the_scale_is_rounded_to_the_safe_side(words: int, epsilon: float) -> None:
    scale = noise_scale(plan_of(words, epsilon))
    assert words / scale <= Fraction(epsilon) and words / (scale - Fraction(1, 1 << 20)) > Fraction(epsilon)


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ({"a", "b"}, "found 2 of one device"),
        ({"two words"}, "has a space"),
        ({"a" * 64}, "over 63"),
        ({"1st"}, "letter"),
    ],
)
def test_contributions_outside_their_bounds_are_refused_without_being_quoted(named: set[str], words: str) -> None:
    with pytest.raises(PrivacyError, match=words) as raised:
        devices_of([named], set(), plan_of(max_words=1))
    assert not any(word in str(raised.value) for word in named if len(word) > 2)
