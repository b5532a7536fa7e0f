from __future__ import annotations

import numpy as np
import pytest

from device_sdk.feedback.slots import SlotLexicon
from server.simulation.cohorts.domains import Sentence
from server.simulation.cohorts.feedback import alternate, weak_losses
from server.simulation.cohorts.methods import CohortSettings, Method

WORDS = ["play", "jazz", "rock", "loud"]
TEXTS = {(1,): "play jazz", (2,): "play rock", (3,): "play"}
LIST = (((2,), -1.0), ((1,), -1.5), ((3,), -4.0))
SENTENCE = Sentence("play jazz", {"genre": "jazz"})
LEXICON = SlotLexicon({"genre": ("jazz", "rock")})
EXACT = CohortSettings(alternate_errors=0.0)


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


def test_the_score_is_about_a_hypothesis_drawn_by_its_probability() -> None:
    method = Method("m", "none", weak=("score",))
    served = [losses(method, seed=seed)[0] for seed in range(400)]
    share = np.mean([loss.hypotheses == ((2,),) for loss in served])
    expected = np.exp(-1.0) / (np.exp(-1.0) + np.exp(-1.5) + np.exp(-4.0))
    assert share == pytest.approx(expected, abs=0.08)
    for loss in served:
        right = loss.hypotheses == ((1,),)
        assert loss.weights.tolist() == [0.5 if right else -0.5]  # baseline 1/2: right is made likelier, wrong less


def test_noise_never_turns_a_score_around() -> None:
    method = Method("m", "none", weak=("score",), sigma=0.4)
    found = [losses(method, seed=seed)[0] for seed in range(300)]
    signs = {(loss.hypotheses == ((1,),)): [] for loss in found}
    for loss in found:
        signs[loss.hypotheses == ((1,),)].append(float(loss.weights[0]))
    assert np.mean(signs[True]) > 0.05 and np.mean(signs[False]) < -0.05
    assert min(signs[True]) < 0.2, "some reports err"


def test_feedback_that_says_the_same_of_all_is_left_out() -> None:
    found = weak_losses(
        LIST[:1], None, SENTENCE, Method("m", "none", weak=("slots",)), EXACT, lambda t: "play rock", WORDS, LEXICON,
        np.random.default_rng(0),
    )  # fmt: skip
    assert found == []


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5])
def test_an_alternate_recogniser_errs_at_its_rate(rate: float) -> None:
    generator = np.random.default_rng(1)
    text = "one two three four five six seven eight nine ten"
    kept = [len(set(text.split()) & set(alternate(text, ["zero"], rate, generator).split())) for _ in range(300)]
    assert 1 - np.mean(kept) / 10 == pytest.approx(rate, abs=0.03)
