from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import FeedbackError
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, SlotLexicon
from device_sdk.learning.candidates import Candidates, Heard, gather, objective
from device_sdk.learning.objectives import Objective
from device_sdk.learning.settings import LearningSettings
from device_sdk.learning.teacher import TeacherSettings

WORDS = ("a", "latte", "with", "soy", "milk", "ladder", "coffee", "no")
PIECES = {word: index for index, word in enumerate(WORDS, 1)}
LEXICON = SlotLexicon({"drink": ("latte", "coffee"), "milk": ("soy milk", "milk")})
TRUTH = Semantics({"drink": "latte", "milk": "soy milk"}, LEXICON)


def encode(text: str) -> list[int]:
    return [PIECES.get(word, 0) for word in text.split()]


def heard(*entries: tuple[str, float]) -> Heard:
    texts = tuple(text for text, _ in entries)
    return Heard(texts, tuple(tuple(encode(text)) for text in texts), tuple(score for _, score in entries))


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
    assert candidates.costs[:4].tolist() == [1.0, 0.5, 1.0, 0.5]
    assert not candidates.costs[4:].any()
    assert candidates.nlls[:4].tolist() == [1.0, 2.0, 4.0, 3.0]
    assert np.isnan(candidates.nlls[4:]).all()
    without = gather(SERVED, TEACHER, TRUTH, encode, LearningSettings(repair=False))
    assert len(without.texts) == 4


def test_texts_that_the_pieces_cannot_write_are_no_candidates() -> None:
    settings = LearningSettings()
    candidates, loss = build(Corrected("a zebra"), settings)
    assert "a zebra" not in candidates.texts
    assert isinstance(loss, Objective)
    assert loss.weights.sum() == 0, "no label, but what was served still costs"
    assert loss.cost_scale == 1.0


def test_the_teacher_labels_what_feedback_does_not_contradict() -> None:
    settings = LearningSettings(cost_weight=0.0)
    _, loss = build(None, settings)
    assert isinstance(loss, Objective)
    assert loss.hypotheses == (tuple(encode("a latte with milk")),)
    _, loss = build(Semantics({"drink": "latte", "milk": "milk"}, LEXICON), settings)
    assert isinstance(loss, Objective)
    assert loss.hypotheses == (tuple(encode("a latte with milk")),)
    assert loss.weights.tolist() == [1.0]


def test_feedback_overrules_the_teacher() -> None:
    _, loss = build(TRUTH, LearningSettings(cost_weight=0.0))
    assert isinstance(loss, Objective)
    (label,) = loss.hypotheses
    assert sorted(label) != sorted(encode("a latte with milk"))
    assert {PIECES["latte"], PIECES["soy"], PIECES["milk"]} <= set(label)


def test_without_a_right_candidate_the_label_weighs_less() -> None:
    _, loss = build(TRUTH, LearningSettings(cost_weight=0.0, repair=False))
    assert isinstance(loss, Objective)
    assert loss.hypotheses == (tuple(encode("a latte with milk")),)
    assert loss.weights.tolist() == [0.5]


@pytest.mark.parametrize(
    ("signal", "label"),
    [
        (Accepted(), "a ladder with milk"),
        (Corrected("a coffee with milk"), "a coffee with milk"),
        (Cancelled(), None),
    ],
)
def test_labels_of_the_other_signals(signal, label: str | None) -> None:
    candidates, loss = build(signal, LearningSettings())
    assert isinstance(loss, Objective)
    labels = [loss.hypotheses[index] for index in np.flatnonzero(loss.weights)]
    weighed = [candidates.texts[candidates.tokens.index(tokens)] for tokens in labels]
    assert weighed == ([] if label is None else [label])
    assert loss.cost_scale == 1.0
    assert len(loss.hypotheses) <= LearningSettings().hypotheses + 2


def test_an_unsure_teacher_or_equal_costs_teach_nothing() -> None:
    sure = LearningSettings(teacher=TeacherSettings(confidence=0.99))
    assert build(None, sure)[1] == "the teacher is not sure"
    assert build(None, LearningSettings(), teacher=None)[1] == "the teacher is not sure"
    nothing = Semantics({"drink": "tea"}, SlotLexicon({"drink": ("tea",)}))
    assert build(nothing, LearningSettings(repair=False))[1] == "the feedback says nothing"


def test_reinforce_is_on_what_was_served() -> None:
    settings = LearningSettings(label_weight=0.0, cost_weight=0.0, reinforce_weight=2.0, baseline=0.25)
    _, loss = build(TRUTH, settings)
    assert isinstance(loss, Objective)
    assert loss.hypotheses == (SERVED.tokens[0],)
    assert loss.weights.tolist() == [-1.5]
    _, both = build(TRUTH, LearningSettings(label_weight=0.0, reinforce_weight=1.0, hypotheses=1))
    assert isinstance(both, Objective)
    assert both.weights[both.hypotheses.index(SERVED.tokens[0])] == -1.0
    assert both.cost_scale == 1.0


def test_an_apps_own_costs_are_checked() -> None:
    prices = gather(SERVED, None, Cancelled(), encode, LearningSettings(), lambda s, texts, served: [0.5] * len(texts))
    assert prices.costs.tolist() == [0.5, 0.5, 0.5]
    with pytest.raises(FeedbackError, match="cost function"):
        gather(SERVED, None, Cancelled(), encode, LearningSettings(), lambda s, texts, served: [2.0] * len(texts))


def test_confidence_is_the_normalised_probability() -> None:
    assert heard(("a", 0.0), ("no", 0.0)).confidence() == pytest.approx(0.5)
    assert heard(("a", -3.0)).confidence() == 1.0
