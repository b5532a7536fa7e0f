"""Words that the user gave: which feedback gives them, how they are counted, kept and read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import Accepted, Alternate, Bundle, Cancelled, Corrected, Rating, Repeated, StateError
from device_sdk.feedback.signals import Signal, combined
from device_sdk.personalization.given import LIMIT, commonest, from_bytes, given_words, recount, to_bytes
from device_sdk.privacy.contributions import reported_words
from rescoring.words import WordList

LIST = WordList(("<unk>", "turn", "on", "the", "light"))
TOLD = Corrected("Turn on the Zürichsee, O’Neill cortado light!")


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ((TOLD,), {"zürichsee", "o'neill", "cortado"}),
        ((Alternate("turn on Zugzwang"),), {"zugzwang"}),
        ((Alternate("turn on zugzwang"), Corrected("the cortado")), {"cortado"}),
        ((Corrected("the cortado"), Corrected("the lungo lungo")), {"lungo"}),
        ((Corrected("the cortado"), Accepted()), {"cortado"}),
        ((Corrected("the cortado"), Rating(0.1)), {"cortado"}),
        ((Corrected("the cortado"), Cancelled()), set()),
        ((Corrected("the cortado"), Repeated(("the lungo",))), set()),
        ((Accepted(),), set()),
        ((Corrected("turn on the light"),), set()),
        ((Corrected(f"the {'x' * 64}"),), set()),
    ],
)
def test_what_feedback_gives(signals: tuple[Signal, ...], expected: set[str]) -> None:
    known: Signal | None = None
    for signal in signals:
        known = combined(known, signal)
    assert known is not None and given_words(known, LIST) == expected


WORDS = st.text("abcdé'", min_size=1, max_size=3)
SETS = st.frozensets(WORDS, max_size=6)


@given(st.lists(st.lists(SETS, min_size=1, max_size=4), max_size=8), st.integers(1, 4))
def test_every_utterance_counts_by_what_it_gave_last(utterances: list[list[frozenset[str]]], most: int) -> None:
    """However often feedback changes what an utterance gives, and in whatever order, the last counts, and once."""
    counts: dict[str, int] = {}
    for stages in utterances:
        for before, after in zip([frozenset(), *stages], stages, strict=False):
            counts = recount(counts, before, after)
    last = [stages[-1] for stages in utterances]
    assert counts == {word: sum(word in each for each in last) for word in frozenset().union(*last)}
    assert len(reported_words(counts, most)) <= most and reported_words(counts, most) <= frozenset().union(*last)


def test_no_more_is_kept_than_the_limit() -> None:
    many = frozenset(f"w{chr(97 + number % 26)}{number:05d}" for number in range(LIMIT + 9))
    counts = recount({"often": 3}, frozenset(), many)
    assert len(counts) == LIMIT and counts["often"] == 3 and commonest({"a": 1, "b": 0, "c": -1}) == {"a": 1}


def test_stored_is_read_back_sorted_and_without_what_the_list_has_now() -> None:
    content = to_bytes({"zugzwang": 2, "cortado": 1, "light": 1})
    assert content.index(b"cortado") < content.index(b"zugzwang")
    assert from_bytes(content, LIST) == {"zugzwang": 2, "cortado": 1} and from_bytes(None, LIST) == {}


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"\xff", b'{"secret": 0}', b'{"secret": "1"}', b'{"two secrets": 1}', b'"secret"', b"7"]
)
def test_damage_is_named_and_not_quoted(content: bytes, tiny_bundle: Bundle) -> None:
    with pytest.raises(StateError, match="counts/given") as raised:
        from_bytes(content, tiny_bundle.words)
    assert "secret" not in str(raised.value)
