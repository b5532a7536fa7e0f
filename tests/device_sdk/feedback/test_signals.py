from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk import Accepted, Alternate, Cancelled, Corrected, Rating, Repeated, Semantics, SlotLexicon
from device_sdk.errors import FeedbackError
from device_sdk.feedback import Together, combined, costs
from device_sdk.feedback.distance import similarity, word_error_rate
from device_sdk.feedback.repair import repair
from device_sdk.feedback.signals import check_costs, parts, written
from device_sdk.feedback.slots import slot_cost
from device_sdk.learning.objectives import posterior

LEXICON = SlotLexicon(
    {
        "drink": ("latte", "iced coffee", "coffee", "espresso"),
        "milk": ("soy milk", "milk", "some milk"),
        "size": ("large", "small"),
        "shots": ("double shot", "triple shot"),
    }
)
TRUTH = {"drink": "latte", "milk": "soy milk"}
TEXTS = ["a latte with soy milk", "a latte with milk", "a ladder with so milk", "coffee", "latte soy milk large", ""]


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Accepted(), [0.0, 0.2, 0.4, 1.0, 0.6, 1.0]),
        (Cancelled(), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        (Repeated(), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        (Repeated(("a latte with soy milk",)), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        (Repeated(("a latte with milk", "coffee", TEXTS[0])), [1.0, 0.0, 0.5, 0.0, 0.75, 1.0]),
        (Rating(0.0), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
        (Rating(0.25), [0.75, 0.25, 0.25, 0.25, 0.25, 0.25]),
        (Rating(0.5), [0.5] * 6),
        (Rating(1), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        (Corrected("  A latte with MILK "), [0.25, 0.0, 0.5, 1.0, 0.75, 1.0]),
        (Alternate("a latte with milk"), [0.25, 0.0, 0.5, 1.0, 0.75, 1.0]),
        (Semantics(TRUTH, LEXICON), [0.0, 0.5, 1.0, 1.0, 0.5, 1.0]),
        (Semantics(TRUTH, LEXICON, "paper"), [0.0, 0.5, 1.0, 1.0, 0.0, 1.0]),
        (Together((Cancelled(), Semantics(TRUTH, LEXICON))), [0.5, 0.25, 0.5, 0.5, 0.25, 0.5]),
    ],
)
def test_the_table_of_costs(signal: object, expected: list[float]) -> None:
    np.testing.assert_allclose(costs(signal, TEXTS, TEXTS[0]), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Corrected("  "), "corrected.text"),
        (lambda: Corrected(3), "corrected.text"),
        (lambda: Alternate(""), "alternate.text"),
        (lambda: Rating(1.5), "rating.value: found 1.5, expected a number in"),
        (lambda: Rating(float("nan")), "rating.value"),
        (lambda: Rating("good"), "rating.value"),
        (lambda: Repeated("again"), "repeated.texts: found str, expected a tuple"),
        (lambda: Repeated((1,)), "repeated.texts"),
        (lambda: written("accepted", frozenset()), "signal: found str, expected Accepted"),
        (lambda: Semantics({"drink": ""}, LEXICON), r"semantics.slots\['drink'\]"),
        (lambda: Semantics({"drink": 3}, LEXICON), "semantics.slots"),
        (lambda: Semantics({}, LEXICON, "lenient"), "semantics.mode"),
        (lambda: check_costs([0.0, 1.0], 3), "shape"),
        (lambda: check_costs([0.0, 1.5], 2), "values in"),
        (lambda: check_costs([0.0, float("nan")], 2), "values in"),
    ],
)
def test_impossible_feedback_is_refused_by_name(make, words: str) -> None:
    with pytest.raises(FeedbackError, match=words):
        make()


MEANT = Semantics(TRUTH, LEXICON)
SIGNALS = (
    *(Accepted(), Cancelled(), Repeated(), Repeated(("a latte with milk",)), Rating(0.7), MEANT),
    *(Corrected("a latte with soy milk"), Alternate("a latte with milk"), Semantics({"drink": "latte"}, LEXICON)),
)


def known_after(said: list):
    return reduce(combined, said, None)


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ([Accepted()], Accepted()),
        ([Accepted(), Cancelled()], Cancelled()),
        ([Repeated(), Rating(0.5), Accepted()], Accepted()),
        ([Semantics({"drink": "latte"}, LEXICON), MEANT], MEANT),
        ([Cancelled(), MEANT], Together((Cancelled(), MEANT))),
        ([MEANT, Cancelled()], Cancelled()),
        ([Corrected("a"), Repeated(("b",))], Repeated(("b",))),
        ([Corrected("a"), Rating(0.0)], Together((Rating(0.0), Corrected("a")))),
        ([Accepted(), Together((Cancelled(), Corrected("a")))], Together((Cancelled(), Corrected("a")))),
        (
            [Corrected("a"), Alternate("b"), Accepted(), Corrected("c")],
            Together((Accepted(), Corrected("c"), Alternate("b"))),
        ),
    ],
)
def test_of_each_kind_the_last_signal_counts(said: list, known: object) -> None:
    assert known_after(said) == known


@given(st.lists(st.sampled_from(SIGNALS), min_size=1, max_size=6))
def test_what_is_known_was_said_is_of_different_kinds_and_holds_the_last(said: list) -> None:
    known = known_after(said)
    kinds = [type(part) for part in parts(known)]
    assert all(part in said for part in parts(known)) and said[-1] in parts(known) and len(set(kinds)) == len(kinds)
    assert sum(kind in (Accepted, Cancelled, Repeated, Rating) for kind in kinds) <= 1
    assert combined(known, known) == known


words = st.lists(st.sampled_from(["a", "latte", "with", "soy", "milk", "large", "some", "coffee"]), max_size=7)


@given(
    st.lists(st.sampled_from(SIGNALS), min_size=1, max_size=4),
    st.lists(words.map(" ".join), min_size=1, max_size=6),
    st.lists(st.floats(-20, 0), min_size=6, max_size=6),
)
def test_costs_are_shares_and_their_mean_lies_between_them(said: list, texts: list[str], scores: list[float]) -> None:
    signal = known_after(said)
    found = costs(signal, texts, texts[0])
    assert found.dtype == np.float32 and found.shape == (len(texts),) and np.all((found >= 0) & (found <= 1))
    single = np.array([costs(each, texts, texts[0]) for each in parts(signal)])
    assert np.all((single.min(axis=0) - 1e-6 <= found) & (found <= single.max(axis=0) + 1e-6))
    assert found.min() - 1e-6 <= float(posterior(scores[: len(texts)]) @ found) <= found.max() + 1e-6


@given(st.floats(0, 1), words.map(" ".join))
def test_a_rating_is_the_sentence_error_to_expect(value: float, served: str) -> None:
    """The served text is right with probability x: then every other text is wrong, else none is known to be."""
    right = np.array([0.0, 1.0])
    wrong = costs(Cancelled(), [served, f"{served} not"], served)
    found = costs(Rating(value), [served, f"{served} not"], served)
    np.testing.assert_allclose(found, value * right + (1 - value) * wrong, atol=1e-6)


@settings(deadline=None)  # the first example imports jiwer
@given(words, words)
def test_word_errors_agree_with_jiwer(reference: list[str], hypothesis: list[str]) -> None:
    jiwer = pytest.importorskip("jiwer")
    if reference:
        expected = jiwer.wer(" ".join(reference), " ".join(hypothesis))
        assert word_error_rate(" ".join(reference), " ".join(hypothesis)) == pytest.approx(expected)


def test_similarity() -> None:
    assert similarity("", "") == similarity("latte", "latte") == 1.0
    assert similarity("latte", "ladder") == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("text", "truth", "expected"),
    [
        ("a ladder with so milk", TRUTH, "a latte with soy milk"),
        ("a large iced coffee", {"drink": "iced coffee"}, "a iced coffee"),
        ("i want trouble shut latte", {"drink": "latte", "shots": "triple shot"}, "i want triple shot latte"),
        ("coffee", {"drink": "iced coffee"}, "iced coffee"),
        ("get me a small latte", {"drink": "latte", "size": "large"}, "get me a large latte"),
    ],
)
def test_the_right_repair_is_among_the_first(text: str, truth: dict[str, str], expected: str) -> None:
    assert expected in repair([text], truth, LEXICON)[:6]


TRUTHS = {name: st.sampled_from(LEXICON.values[name]) for name in ("drink", "milk")}


@given(st.lists(words.map(" ".join), max_size=5), st.fixed_dictionaries({}, optional=TRUTHS))
def test_repairs_have_no_slot_errors_and_are_few_and_new(texts: list[str], truth: dict[str, str]) -> None:
    found = repair(texts, truth, LEXICON, limit=16)
    assert len(found) == len(set(found)) <= 16
    for text in found:
        assert slot_cost(text, truth, LEXICON) == 0 and text not in texts
    assert repair(["a latte with soy milk"], TRUTH, LEXICON) == (), "a right text is left alone"
