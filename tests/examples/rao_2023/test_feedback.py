from __future__ import annotations

import math

import numpy as np
import pytest

from device_sdk.feedback.slots import SlotLexicon
from device_sdk.learning.objectives import posterior
from examples.rao_2023.domains import Sentence
from examples.rao_2023.methods import CohortSettings, Method
from examples.rao_2023.rounds import alternate, weak_losses

WORDS = ["play", "jazz", "rock", "loud"]
TEXTS = {(1,): "play jazz", (2,): "play rock", (3,): "play"}
LIST = (((2,), -1.0), ((1,), -1.5), ((3,), -4.0))
SENTENCE = Sentence("play jazz", {"genre": "jazz"})
LEXICON = SlotLexicon({"genre": ("jazz", "rock")})
EXACT = CohortSettings(alternate_errors=0.0, weight=1.0)


def losses(method: Method, taught: tuple[int, ...] | None = None, settings: CohortSettings = EXACT, seed: int = 0):
    decode = TEXTS.__getitem__
    generator = np.random.default_rng(seed)
    return weak_losses(LIST, taught, SENTENCE, method, settings, lambda t: decode(tuple(t)), WORDS, LEXICON, generator)


@pytest.mark.parametrize(
    ("weak", "expected"),
    [(("transcript",), [[0.5, 0.0, 0.5]]), (("slots",), [[1.0, 0.0, 1.0]])],
)
def test_costs_are_those_of_the_feedback(weak: tuple, expected: list[list[float]]) -> None:
    found = losses(Method("m", "none", weak=weak))
    assert [loss.costs.tolist() for loss in found] == expected
    assert found[0].hypotheses == ((2,), (1,), (3,))


def test_both_kinds_of_cost_weigh_the_same() -> None:
    one, other = losses(Method("m", "none", weak=("transcript", "slots")))
    together = one + other
    assert together.cost_scale == 2.0
    np.testing.assert_allclose(together.costs * together.cost_scale, [1.5, 0.0, 1.5])


def test_a_label_that_the_student_did_not_find_takes_part_with_its_own_cost() -> None:
    TEXTS[(4,)] = "jazz"
    (loss,) = losses(Method("m", weak=("transcript",)), taught=(4,))
    assert loss.hypotheses[-1] == (4,) and loss.costs[-1] == pytest.approx(0.5)


def test_the_score_moves_the_policy_that_the_served_hypothesis_was_drawn_from() -> None:
    """Over many draws, the weights on the NLLs are minus the gradient of the expected score under the n-best."""
    method = Method("m", "none", weak=("score",))
    mean = np.mean([losses(method, seed=seed)[0].weights for seed in range(1200)], axis=0)
    chances = posterior([score for _, score in LIST])
    wrong = np.array([1.0, 0.0, 1.0])
    np.testing.assert_allclose(mean, chances * (chances @ wrong - wrong), atol=0.04)


def test_one_score_takes_from_the_wrong_hypothesis_and_gives_to_the_others() -> None:
    method = Method("m", "none", weak=("score",))
    for seed in range(20):
        (loss,) = losses(method, seed=seed)
        assert loss.weights.sum() == pytest.approx(0.0, abs=1e-6)
        served = int(np.argmax(np.abs(loss.weights)))
        assert loss.hypotheses == ((2,), (1,), (3,))
        assert (loss.weights[served] > 0) == (served == 1), "the right one is the second"


@pytest.mark.parametrize("sigma", [0.0, 0.2, 0.4])
def test_noise_shrinks_what_a_score_says_and_keeps_its_sign(sigma: float) -> None:
    """E[M'] - 1/2 = (1 - 2 mu) (M - 1/2), with mu the mean of the truncated normal."""
    weights = [losses(Method("m", "none", weak=("score",), sigma=sigma), seed=seed)[0].weights for seed in range(1200)]
    exact = [losses(Method("m", "none", weak=("score",)), seed=seed)[0].weights for seed in range(1200)]
    share = (
        0.0
        if sigma == 0
        else sigma * math.sqrt(2 / math.pi) * (1 - math.exp(-0.5 / sigma**2)) / math.erf(1 / (sigma * math.sqrt(2)))
    )
    np.testing.assert_allclose(np.mean(weights, 0), (1 - 2 * share) * np.mean(exact, 0), atol=0.04)


def test_feedback_that_says_the_same_of_all_is_left_out() -> None:
    found = weak_losses(
        LIST[:1], None, SENTENCE, Method("m", "none", weak=("slots",)), EXACT, lambda t: "play rock", WORDS, LEXICON,
        np.random.default_rng(0),
    )  # fmt: skip
    assert found == []


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_an_alternate_recognizer_errs_at_its_rate(rate: float) -> None:
    generator = np.random.default_rng(1)
    text = "one two three four five six seven eight nine ten"
    kept = [len(set(text.split()) & set(alternate(text, ["zero"], rate, generator).split())) for _ in range(300)]
    assert 1 - np.mean(kept) / 10 == pytest.approx(rate, abs=0.03)
