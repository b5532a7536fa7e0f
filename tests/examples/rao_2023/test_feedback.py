"""What users say of n-best lists, how they err, and what a teacher's second pass makes of its own."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.objectives import Objective, posterior
from examples.rao_2023 import methods
from examples.rao_2023.domains import Sentence
from examples.rao_2023.methods import CohortSettings, LabelSettings, Method, Weak, general_text, teacher_labels
from examples.rao_2023.rounds import Knowledge, alternate, noisy_cost, truncated_normal, weak_losses

TEXTS = {(1,): "play jazz", (2,): "play rock", (3,): "play", (4,): "jazz"}
LIST = (((2,), -1.0), ((1,), -1.5), ((3,), -4.0))
SENTENCE = Sentence("play jazz", {"genre": "jazz"})
KNOWN = Knowledge(["play", "rock"], SlotLexicon({"genre": ("jazz", "rock")}), lambda text: 0.0)
EXACT = CohortSettings(alternate_errors=0.0, weight=1.0)


def losses(*weak: Weak, taught: Any = None, sigma: float = 0.0, seed: int = 0, entries: Any = LIST) -> list[Objective]:
    method, generator = Method("m", "none", weak=weak, sigma=sigma), np.random.default_rng(seed)
    return weak_losses(entries, taught, SENTENCE, method, EXACT, lambda t: TEXTS[tuple(t)], KNOWN, generator)


def test_costs_are_those_of_the_feedback_weigh_the_same_and_a_label_has_its_own() -> None:
    one, other = losses("transcript", "slots")
    assert one.costs.tolist() == [0.5, 0.0, 0.5] and other.costs.tolist() == [1.0, 0.0, 1.0]
    assert one.hypotheses == other.hypotheses == ((2,), (1,), (3,))
    together = one + other
    assert together.cost_scale == 2.0
    np.testing.assert_allclose(together.costs * together.cost_scale, [1.5, 0.0, 1.5])
    assert losses("slots", entries=LIST[:1]) == [], "it says the same of all"
    (loss,) = losses("transcript", taught=(4,))
    assert loss.hypotheses[-1] == (4,) and loss.costs[-1] == pytest.approx(0.5)


def test_the_score_moves_the_policy_that_the_served_hypothesis_was_drawn_from() -> None:
    """Over many draws, the weights on the NLLs are minus the gradient of the expected score under the n-best."""
    found = [losses("score", seed=seed)[0] for seed in range(1200)]
    chances, wrong = posterior([score for _, score in LIST]), np.array([1.0, 0.0, 1.0])
    np.testing.assert_allclose(
        np.mean([loss.weights for loss in found], 0), chances * (chances @ wrong - wrong), atol=0.04
    )
    for loss in found[:20]:
        assert loss.weights.sum() == pytest.approx(0.0, abs=1e-6)
        served = int(np.argmax(np.abs(loss.weights)))
        assert loss.hypotheses == ((2,), (1,), (3,))
        assert (loss.weights[served] > 0) == (served == 1), "the right one is the second"


@pytest.mark.parametrize("sigma", [0.2, 0.4])
def test_noise_shrinks_what_a_score_says_and_keeps_its_sign(sigma: float) -> None:
    """E[M'] - 1/2 = (1 - 2 mu) (M - 1/2), with mu the mean of the truncated normal."""
    noisy, exact = ([losses("score", sigma=s, seed=seed)[0].weights for seed in range(1200)] for s in (sigma, 0.0))
    mu = sigma * math.sqrt(2 / math.pi) * (1 - math.exp(-0.5 / sigma**2)) / math.erf(1 / (sigma * math.sqrt(2)))
    np.testing.assert_allclose(np.mean(noisy, 0), (1 - 2 * mu) * np.mean(exact, 0), atol=0.04)


@pytest.mark.parametrize("sigma", [0.1, 0.2, 0.4, 3.0])
def test_the_distribution_is_scipys(sigma: float) -> None:
    """By its inverse distribution function, and the mean of noisy feedback by the paper's."""
    expected = stats.truncnorm(0.0, 1.0 / sigma, scale=sigma)
    uniform = np.random.default_rng(5).random(100)
    np.testing.assert_allclose(truncated_normal(sigma, 100, np.random.default_rng(5)), expected.ppf(uniform), rtol=1e-7)
    generator, mu = np.random.default_rng(7), expected.mean()
    for cost in (False, True):
        mean = np.mean([noisy_cost(cost, sigma, generator) for _ in range(8000)])
        assert mu < 0.5 and mean == pytest.approx((1 - 2 * mu) * cost + mu, abs=0.02)
        assert noisy_cost(cost, 0.0, generator) == cost


@given(st.floats(0, 1e6), st.integers(0, 1000))
def test_every_sigma_gives_values_in_the_unit_interval(sigma: float, seed: int) -> None:
    drawn = truncated_normal(sigma, 20, np.random.default_rng(seed))
    assert np.all((drawn >= 0) & (drawn <= 1))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_an_alternate_recognizer_errs_at_its_rate(rate: float) -> None:
    generator = np.random.default_rng(1)
    text = "one two three four five six seven eight nine ten"
    kept = [len(set(text.split()) & set(alternate(text, ["zero"], rate, generator).split())) for _ in range(300)]
    assert 1 - np.mean(kept) / 10 == pytest.approx(rate, abs=0.03)


def test_general_text_is_a_distribution_over_the_words_it_has_seen() -> None:
    score = general_text(["play some jazz", "play the radio", "stop the radio"] * 3)
    assert score("play the radio") > score("radio the play") and score("play the banjo") < score("play the radio")
    words = ("play", "some", "jazz", "the", "radio", "stop", "banjo")
    assert 0.0 < sum(math.exp(score(word)) for word in words) + math.exp(score("")) < 1.0


@pytest.mark.parametrize(
    ("weight", "bonus", "sure", "text", "expected"),
    [
        (0.0, 5.0, -9.0, {}, (1,)),
        (1.0, 0.0, -9.0, {"play": -3.0, "play jazz": -2.0}, (1, 2)),
        (1.0, 1.0, -9.0, {}, (1, 2)),
        (1.0, 5.0, -9.0, {}, (1, 2, 3)),
        (0.0, 5.0, -1.9, {}, None),
        (1.0, 1.0, -1.3, {}, (1, 2)),
        (1.0, 1.0, -1.1, {}, None),
    ],
)
def test_the_second_pass_chooses_and_the_first_says_how_sure(monkeypatch, weight, bonus, sure, text, expected) -> None:
    heard = {(1,): "play", (1, 2): "play jazz", (1, 2, 3): "play jazz now", (): ""}
    lists = [tuple(zip(heard, (-2.0, -2.4, -6.0), strict=False)), (((), -0.1),)]
    monkeypatch.setattr(methods, "nbest", lambda *_: lists)
    settings = LabelSettings(text_weight=weight, word_bonus=bonus, sure=sure)
    found = teacher_labels(None, [], heard.__getitem__, lambda said: text.get(said, 0.0), settings)  # type: ignore[arg-type]
    assert found == [expected, None], "an empty label teaches nothing"
