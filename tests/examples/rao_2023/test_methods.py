"""What a teacher teaches: the second pass may choose another entry than the first, which the filter looks at."""

from __future__ import annotations

import math

import numpy as np
import pytest

from examples.rao_2023 import methods
from examples.rao_2023.lists import NBest
from examples.rao_2023.methods import LabelSettings, general_text, teacher_labels

HEARD: NBest = (((1,), -2.0), ((1, 2), -2.4), ((1, 2, 3), -6.0))
TEXTS = {(1,): "play", (1, 2): "play jazz", (1, 2, 3): "play jazz now"}


def test_general_text_is_a_distribution_over_the_words_it_has_seen() -> None:
    score = general_text(["play some jazz", "play the radio", "stop the radio"] * 3)
    assert score("play the radio") > score("radio the play")
    assert score("play the banjo") < score("play the radio")
    words = ("play", "some", "jazz", "the", "radio", "stop", "banjo")
    assert 0.0 < sum(math.exp(score(word)) for word in words) + math.exp(score("")) < 1.0


@pytest.mark.parametrize(
    ("settings", "text", "expected"),
    [
        (LabelSettings(text_weight=0.0, sure=-9.0), {}, (1,)),
        (LabelSettings(text_weight=1.0, word_bonus=0.0, sure=-9.0), {"play": -3.0, "play jazz": -2.0}, (1, 2)),
        (LabelSettings(text_weight=1.0, word_bonus=1.0, sure=-9.0), {}, (1, 2)),
        (LabelSettings(text_weight=1.0, word_bonus=5.0, sure=-9.0), {}, (1, 2, 3)),
        (LabelSettings(text_weight=0.0, sure=-1.9), {}, None),
        (LabelSettings(text_weight=1.0, word_bonus=1.0, sure=-1.3), {}, (1, 2)),
        (LabelSettings(text_weight=1.0, word_bonus=1.0, sure=-1.1), {}, None),
    ],
)
def test_the_second_pass_chooses_and_the_first_decides_whether_it_is_sure(
    monkeypatch: pytest.MonkeyPatch, settings: LabelSettings, text: dict[str, float], expected: tuple[int, ...] | None
) -> None:
    monkeypatch.setattr(methods, "nbest", lambda *_: [HEARD, (((), -0.1),)])
    found = teacher_labels(
        None,
        [np.zeros((3, 4), np.float32)] * 2,
        lambda t: TEXTS.get(tuple(t), ""),
        lambda t: text.get(t, 0.0),
        settings,
    )  # type: ignore[arg-type]
    assert found == [expected, None], "an empty label teaches nothing"
