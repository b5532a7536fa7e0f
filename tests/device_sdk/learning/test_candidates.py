from dataclasses import replace

import numpy as np
import pytest

from device_sdk import Accepted, Alternate, Cancelled, Corrected, Rating, Repeated, Semantics, SlotLexicon
from device_sdk.errors import FeedbackError
from device_sdk.feedback import Together
from device_sdk.learning.candidates import Candidates, Heard, gather, objective
from device_sdk.learning.objectives import Objective
from device_sdk.learning.settings import LearningSettings, TeacherSettings

WORDS = ("a", "latte", "with", "soy", "milk", "ladder", "coffee", "no")
PIECES = {word: index for index, word in enumerate(WORDS, 1)}
LEXICON = SlotLexicon({"drink": ("latte", "coffee"), "milk": ("soy milk", "milk")})
TRUTH = Semantics({"drink": "latte", "milk": "soy milk"}, LEXICON)


def encode(text: str) -> list[int]:
    return [PIECES.get(word, 0) for word in text.split()]


def heard(*entries: tuple[str, float]) -> Heard:
    texts = tuple(text for text, _ in entries)
    return Heard(texts, tuple(tuple(encode(text)) for text in texts), tuple(score for _, score in entries))


SECOND = "a latte with milk"  # likelier than any other that was not served first
SERVED = heard(("a ladder with milk", -1.0), ("a latte with milk", -2.0), ("a coffee", -4.0))
TEACHER = heard(("a latte with milk", -0.5), ("a ladder with soy milk", -3.0))


def known(candidates: Candidates) -> Candidates:
    """What the training graph would fill in: later candidates are likelier."""
    for index in np.flatnonzero(np.isnan(candidates.nlls)):
        candidates.nlls[index] = 10.0 - index
    return candidates


def build(signal, settings: LearningSettings, teacher: Heard | None = TEACHER) -> tuple[Candidates, Objective | str]:
    candidates = known(gather(SERVED, teacher, signal, encode, settings))
    return candidates, objective(candidates, teacher, signal, settings)


def test_candidates_come_from_both_lists_and_the_slots() -> None:
    candidates = gather(SERVED, TEACHER, TRUTH, encode, LearningSettings())
    assert candidates.texts[:4] == (*SERVED.texts, "a ladder with soy milk")
    assert "a latte with soy milk" in candidates.texts[4:]
    assert candidates.costs[:4].tolist() == [1.0, 0.5, 1.0, 0.5] and not candidates.costs[4:].any()
    assert candidates.nlls[:4].tolist() == [1.0, 2.0, 4.0, 3.0] and np.isnan(candidates.nlls[4:]).all()
    assert len(gather(SERVED, TEACHER, TRUTH, encode, LearningSettings(repair=False)).texts) == 4


def test_texts_that_the_pieces_cannot_write_are_no_candidates() -> None:
    candidates, loss = build(Corrected("a zebra"), LearningSettings())
    assert "a zebra" not in candidates.texts and isinstance(loss, Objective)
    assert (loss.weights.sum(), loss.cost_scale) == (0, 1.0), "no label, but what was served still costs"


@pytest.mark.parametrize(("repair", "words", "weight"), [(True, "latte soy milk", 1.0), (False, SECOND, 0.5)])
def test_feedback_overrules_the_teacher_and_without_a_right_candidate_weighs_less(repair, words, weight) -> None:
    _, loss = build(TRUTH, LearningSettings(cost_weight=0.0, repair=repair))
    assert isinstance(loss, Objective) and loss.weights.tolist() == [weight]
    assert {*encode(words)} <= {*loss.hypotheses[0]}


def test_an_unsure_teacher_or_equal_costs_teach_nothing() -> None:
    sure = LearningSettings(teacher=TeacherSettings(confidence=0.99))
    assert build(None, sure)[1] == build(None, LearningSettings(), teacher=None)[1] == "the teacher is not sure"
    nothing = Semantics({"drink": "tea"}, SlotLexicon({"drink": ("tea",)}))
    assert build(nothing, LearningSettings(repair=False))[1] == "the feedback says nothing"


@pytest.mark.parametrize(
    ("signal", "labels", "expected"),
    [
        (None, "feedback", {SECOND: 1.0}),
        (Semantics({"drink": "latte", "milk": "milk"}, LEXICON), "feedback", {SECOND: 1.0}),
        (Accepted(), "feedback", {SERVED.texts[0]: 1.0}),
        (Accepted(), "teacher", {SECOND: 1.0}),
        (Cancelled(), "feedback", {}),
        (Cancelled(), "teacher", {SECOND: 1.0}),
        (Repeated((SECOND,)), "feedback", {}),
        (Rating(0.75), "feedback", {SERVED.texts[0]: 0.5}),
        (Rating(0.5), "feedback", {}),
        (Rating(0.0), "feedback", {}),
        (Rating(0.0), "teacher", {SECOND: 1.0}),
        (Alternate("a latte with soy milk"), "feedback", {"a latte with soy milk": 1.0}),
        (Alternate("a latte with soy milk"), "teacher", {SECOND: 1.0}),
        (Alternate(SECOND), "feedback", {SECOND: 1.0}),
        (Corrected("a coffee"), "feedback", {"a coffee": 1.0}),
        (Corrected("a coffee"), "teacher", {"a coffee": 1.0}),
        (Together((Accepted(), Corrected("a coffee"))), "feedback", {"a coffee": 1.0}),
        (Together((Cancelled(), Alternate(SERVED.texts[0]))), "feedback", {SECOND: 0.875}),
    ],
)
def test_the_label_of_every_signal(signal, labels, expected: dict[str, float]) -> None:
    candidates, loss = build(signal, LearningSettings(labels=labels, cost_weight=0.0))
    if not expected:
        assert loss == "the feedback says nothing"
        return
    assert isinstance(loss, Objective)
    texts = [candidates.texts[candidates.tokens.index(tokens)] for tokens in loss.hypotheses]
    found = {text: weight for text, weight in zip(texts, loss.weights.tolist(), strict=True) if weight}
    assert found == pytest.approx(expected)


def test_a_correction_weighs_as_supervision_and_nothing_else_labels() -> None:
    for weight, expected in ((0.25, [0.25]), (0.0, None)):
        _, loss = build(Corrected("a coffee with milk"), LearningSettings(supervision_weight=weight, cost_weight=0.0))
        if expected is None:
            assert loss == "the feedback says nothing"
        else:
            assert isinstance(loss, Objective) and loss.weights.tolist() == expected
            assert loss.hypotheses == (tuple(encode("a coffee with milk")),)


SIGNALS = [
    *(Accepted(), Cancelled(), Repeated((SECOND,)), Rating(0.2), Rating(0.9), TRUTH, Together((Cancelled(), TRUTH))),
    *(Corrected("a latte with soy milk"), Alternate("a coffee with milk")),
]


@pytest.mark.parametrize("labels", ["feedback", "teacher"])
@pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: type(signal).__name__)
def test_losses_freely_summed_are_the_sum_of_each_alone(signal, labels) -> None:
    weights = {"label_weight": 0.5, "cost_weight": 2.0, "supervision_weight": 0.75, "reinforce_weight": 1.5}
    settings = LearningSettings(labels=labels, baseline=0.3, **weights)
    candidates, every = build(signal, settings)
    assert isinstance(every, Objective)
    place, scale = {tokens: index for index, tokens in enumerate(every.hypotheses)}, 0.0
    summed = np.zeros(len(place))
    for name in weights:
        _, alone = build(signal, replace(settings, **{other: 0.0 for other in weights if other != name}))
        if isinstance(alone, str):
            continue
        scale += alone.cost_scale
        for tokens, weight in zip(alone.hypotheses, alone.weights, strict=True):
            if weight:
                summed[place[tokens]] += weight
    np.testing.assert_allclose(every.weights, summed, atol=1e-6)
    costs = [candidates.costs[candidates.tokens.index(tokens)] for tokens in every.hypotheses]
    assert every.cost_scale == scale and (not scale or every.costs.tolist() == pytest.approx(costs, abs=1e-6))


def test_reinforce_is_on_what_was_served_against_the_baseline() -> None:
    settings = LearningSettings(label_weight=0.0, cost_weight=0.0, reinforce_weight=2.0, baseline=0.9)
    candidates = known(gather(SERVED, TEACHER, TRUTH, encode, settings))
    for baseline, weight in ((None, 0.9 - 1.0), (0.25, 0.25 - 1.0)):
        loss = objective(candidates, TEACHER, TRUTH, settings, baseline)
        assert isinstance(loss, Objective) and loss.hypotheses == (SERVED.tokens[0],)
        assert loss.weights.tolist() == pytest.approx([2.0 * weight])
    assert objective(candidates, TEACHER, TRUTH, settings, 1.0) == "the feedback says nothing"
    _, both = build(TRUTH, LearningSettings(label_weight=0.0, reinforce_weight=1.0, hypotheses=1))
    assert isinstance(both, Objective) and both.cost_scale == 1.0
    assert both.weights[both.hypotheses.index(SERVED.tokens[0])] == -1.0


def test_an_apps_own_costs_are_checked() -> None:
    given = SERVED, None, Cancelled(), encode, LearningSettings()
    assert gather(*given, lambda signal, texts, served: [0.5] * len(texts)).costs.tolist() == [0.5, 0.5, 0.5]
    with pytest.raises(FeedbackError, match="cost function"):
        gather(*given, lambda signal, texts, served: [2.0] * len(texts))


def test_confidence_is_the_normalized_probability() -> None:
    assert (heard(("a", 0.0), ("no", 0.0)).confidence(), heard(("a", -3.0)).confidence()) == (0.5, 1.0)


@pytest.mark.parametrize(
    ("confidences", "signal", "chance"),
    [
        ((0.6, 0.2, 0.1), Cancelled(), 0.75),
        ((0.6, 0.2, 0.1), Repeated(), 0.75),
        ((0.6, 0.5, 0.1), Cancelled(), 1.0),
        ((1.0, 0.0, 0.0), Cancelled(), 1.0),
        ((0.0, 0.01, 0.02), Cancelled(), None),
        ((0.0, 0.01, 0.02), Repeated((SECOND,)), 1.0),
        ((0.0, 0.01, 0.02), TRUTH, 1.0),
        ((), Cancelled(), 1.0),
    ],
)
def test_that_it_was_wrong_says_as_much_as_another_is_likely_to_be_right(confidences, signal, chance) -> None:
    served, settings = replace(SERVED, confidences=confidences), LearningSettings(label_weight=0.0, cost_weight=2.0)
    loss = objective(known(gather(served, TEACHER, signal, encode, settings)), TEACHER, signal, settings)
    if chance is None:
        assert loss == "the feedback says nothing"
    else:
        assert isinstance(loss, Objective) and loss.cost_scale == pytest.approx(2.0 * chance)
    ours = gather(served, TEACHER, signal, encode, settings, lambda signal, texts, served: [0.5] * len(texts))
    assert ours.chance == 1.0, "an app's own costs say what they say"


@pytest.mark.parametrize(("heard", "contradicted"), [(0.01, True), (0.2, False), (3.1, False)])
def test_words_in_silence_are_none(heard: float, contradicted: bool) -> None:
    """Where surely nobody speaks no correction is learned from, or silence would say it from then on; what was missed
    is."""
    found = Candidates(("", "b c"), ((), (2, 3)), np.array([1.0, 0.0], np.float32), np.array([heard, 20.0]))
    loss = objective(found, None, Corrected("b c"), LearningSettings())
    assert (loss == "the correction is not what was said") == contradicted


@pytest.mark.parametrize(
    ("heard", "given", "rewritten"),
    [(2.0, 13.9, False), (2.0, 14.1, True), (2.0, np.inf, True), (3.1, 99.0, False)],
)
def test_a_correction_that_rewrites_what_was_said_is_none(heard: float, given: float, rewritten: bool) -> None:
    """Four pieces against one: 3 nats a piece are 12 more. Where even what was heard is unlikely, nothing is known."""
    tokens = (1,), (1, 2, 3, 4)
    found = Candidates(("a", "b c d e"), tokens, np.array([1.0, 0.0], np.float32), np.array([heard, given]))
    loss = objective(found, None, Corrected("b c d e"), LearningSettings())
    assert (loss == "the correction is not what was said") == rewritten
