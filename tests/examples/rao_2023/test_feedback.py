"""What users say of n-best lists, how they err, and what a teacher's second pass makes of its own."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.objectives import Objective, posterior, reinforce
from examples.rao_2023 import methods
from examples.rao_2023.domains import Sentence
from examples.rao_2023.methods import CohortSettings, LabelSettings, Method, Weak, general_text, teacher_labels
from examples.rao_2023.rounds import Knowledge, alternate, noisy_cost, truncated_normal, weak_losses

TEXTS = {(1,): "play jazz", (2,): "play rock", (3,): "play", (4,): "jazz"}
LIST = (((2,), -1.0), ((1,), -1.5), ((3,), -4.0))
SENTENCE = Sentence("play jazz", {"genre": "jazz"})
KNOWN = Knowledge(["play", "rock"], SlotLexicon({"genre": ("jazz", "rock")}), lambda text: 0.0)
EXACT = CohortSettings(alternate_errors=0.0)


def losses(
    *weak: Weak, taught: Any = None, sigma: float = 0.0, seed: int = 0, entries: Any = LIST, errors: float = 0.0
) -> list[Objective]:
    method, generator = Method("m", "none", weak=weak, sigma=sigma), np.random.default_rng(seed)
    settings = replace(EXACT, alternate_errors=errors)
    return weak_losses(entries, taught, SENTENCE, method, settings, lambda t: TEXTS[tuple(t)], KNOWN, generator)


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


@pytest.mark.parametrize("kind", ["score", "binary"])
def test_a_score_is_the_devices_reinforce_of_what_was_served(kind: Weak) -> None:
    """Here both kinds say 1 of the wrong ones and 0 of the right one. Over many draws the served text is as often each
    one as it is likely."""
    found = [losses(kind, seed=seed)[0] for seed in range(1200)]
    chances = posterior([score for _, score in LIST])
    served = [loss.hypotheses[0] for loss in found]
    shares = [served.count(tokens) / len(served) for tokens, _ in LIST]
    np.testing.assert_allclose(shares, chances, atol=0.04)
    for loss in found[:20]:
        expected = reinforce(loss.hypotheses[0], float(loss.hypotheses != ((1,),)), EXACT.baseline)
        assert loss.hypotheses == expected.hypotheses and loss.weights == expected.weights


def test_another_system_errs_and_its_slots_with_it() -> None:
    """What it heard wrongly costs the hypothesis that is right."""
    right = [losses("slots", seed=seed, errors=0.5) for seed in range(300)]
    blamed = [loss.costs[loss.hypotheses.index((1,))] for (loss,) in filter(None, right)]
    assert 0.0 in blamed and 1.0 in blamed
    served_right = [loss for seed in range(300) for loss in losses("score", seed=seed, errors=0.5, entries=LIST[1:2])]
    weights = {float(loss.weights[0]) for loss in served_right}
    assert weights == {-0.5, 0.5}, "a score goes by the same slots"


@pytest.mark.parametrize("sigma", [0.2, 0.4])
def test_noise_shrinks_what_a_score_says_and_keeps_its_sign(sigma: float) -> None:
    """E[M'] - 1/2 = (1 - 2 mu) (M - 1/2), with mu the mean of the truncated normal."""

    def mean(level: float) -> float:
        drawn = [losses("binary", sigma=level, seed=seed, entries=LIST[1:2])[0].weights[0] for seed in range(1200)]
        return float(np.mean(drawn))

    mu = sigma * math.sqrt(2 / math.pi) * (1 - math.exp(-0.5 / sigma**2)) / math.erf(1 / (sigma * math.sqrt(2)))
    assert mean(sigma) == pytest.approx((1 - 2 * mu) * mean(0.0), abs=0.04)


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
