"""Slots: longest match, error counts, costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import FeedbackError
from device_sdk.feedback.slots import SlotLexicon, read_slots, semantic_cost, slot_cost, slot_errors

LEXICON = SlotLexicon(
    {
        "drink": ("coffee", "iced coffee", "iced mocha", "mocha"),
        "milk": ("milk", "soy milk", "a bit of soy milk"),
        "roast": ("medium roast", "dark roast"),
        "size": ("medium", "eight ounce"),
        "digit1": ("three", "five"),
        "digit2": ("three", "five"),
    }
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("hello there", ()),
        ("coffee", (("drink", "coffee"),)),
        ("an iced coffee", (("drink", "iced coffee"),)),
        ("iced iced coffee", (("drink", "iced coffee"),)),
        ("medium medium roast mocha", (("size", "medium"), ("roast", "medium roast"), ("drink", "mocha"))),
        ("mocha with a bit of soy milk", (("drink", "mocha"), ("milk", "a bit of soy milk"))),
        ("mocha with a bit of milk", (("drink", "mocha"), ("milk", "milk"))),
        ("mocha or coffee", (("drink", "mocha"), ("drink", "coffee"))),
        ("five three", (("digit1", "five"), ("digit2", "three"))),
        ("three three three", (("digit1", "three"), ("digit2", "three"), ("digit1", "three"))),
    ],
)
def test_read_slots(text: str, expected: tuple[tuple[str, str], ...]) -> None:
    assert read_slots(text, LEXICON) == expected


@pytest.mark.parametrize(
    ("truth", "text", "errors"),
    [
        ({}, "hello", 0),
        ({}, "coffee", 1),
        ({"drink": "mocha"}, "mocha", 0),
        ({"drink": "mocha"}, "", 1),
        ({"drink": "mocha"}, "coffee", 1),
        ({"drink": "mocha"}, "mocha coffee", 1),
        ({"drink": "mocha"}, "coffee coffee", 2),
        ({"drink": "mocha", "milk": "soy milk"}, "mocha with milk", 1),
        ({"drink": "mocha", "milk": "soy milk"}, "medium mocha", 2),
        ({"drink": "mocha", "size": "medium"}, "medium roast mocha", 2),
    ],
)
def test_wrong_missing_and_extra_slots_are_counted(truth: dict[str, str], text: str, errors: int) -> None:
    assert slot_errors(truth, read_slots(text, LEXICON)) == errors and slot_cost(text, truth, LEXICON) == errors
    assert semantic_cost(text, truth, LEXICON) == errors / max(len(truth), 1)


def test_paper_mode_looks_for_tokens_only() -> None:
    truth = {"drink": "mocha", "milk": "soy milk"}
    everything = "iced coffee mocha medium dark roast with soy almond milk"
    assert slot_cost(everything, truth, LEXICON, "paper") == 0
    assert slot_cost("soy mocha", truth, LEXICON, "paper") == 1 and slot_cost(everything, truth, LEXICON) > 0


def test_lexicon_from_labels_is_sorted_and_distinct_and_an_empty_value_refused() -> None:
    with pytest.raises(FeedbackError, match=r"lexicon\['drink'\]\[1\]: found no words"):
        SlotLexicon({"drink": ("mocha", " ")})
    lexicon = SlotLexicon.from_labels([{"size": "small", "drink": "mocha"}, {"drink": "latte"}, {"drink": "mocha"}])
    assert lexicon == SlotLexicon({"drink": ("latte", "mocha"), "size": ("small",)})
    assert list(lexicon.values) == ["drink", "size"]


WORDS = st.lists(st.sampled_from(["a", "iced", "coffee", "mocha", "soy", "milk", "medium", "dark", "roast", "eight"]))


@given(WORDS)
def test_reading_covers_disjoint_words_in_order(words: list[str]) -> None:
    values = [value for _, value in read_slots(" ".join(words), LEXICON)]
    start = 0
    for value in values:
        parts = value.split()
        start = next(at for at in range(start, len(words)) if words[at : at + len(parts)] == parts) + len(parts)


@given(st.dictionaries(st.sampled_from(["drink", "milk"]), st.sampled_from(["mocha", "milk"])), WORDS)
def test_errors_are_bounded(truth: dict[str, str], words: list[str]) -> None:
    found = read_slots(" ".join(words), LEXICON)
    errors = slot_errors(truth, found)
    assert abs(len(found) - len(truth)) <= errors <= len(found) + len(truth)
    assert slot_errors(dict(found), dict(found).items()) == 0
    assert slot_errors(truth, tuple(reversed(found))) == errors, "order does not matter"
