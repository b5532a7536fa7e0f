import json
import math
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import StateError
from device_sdk.feedback import Accepted, Alternate, Cancelled, Corrected, Rating, Repeated, Semantics, Signal, Together
from device_sdk.feedback.slots import SlotLexicon, slot_cost
from device_sdk.personalization import cache
from device_sdk.personalization.cache import UtteranceCounts, confirmed_texts
from rescoring.combination import CombinationWeights
from rescoring.marginals import PersonalMarginal, mixed
from rescoring.words import UNKNOWN, WordList

WORDS = WordList((UNKNOWN, "get", "me", "a", "mocha"))
BACKGROUND = np.array([0.1, 0.3, 0.3, 0.2, 0.1])

texts = st.lists(st.lists(st.sampled_from(["get", "me", "mocha", "zog", "blip"]), max_size=5).map(" ".join), max_size=4)


def count(texts: list[str], words: WordList, sigma: float) -> cache.UtteranceCounts:
    return cache.count_words(texts, words, CombinationWeights(sigma=sigma))


def test_counts_weigh_ranks_and_keep_unlisted_words_apart() -> None:
    found = count(["get me a mocha", "get zog a zog", "get"], WORDS, 1.0)
    second, third = math.exp(-0.5), math.exp(-2.0)
    assert found.listed == pytest.approx({1: 1 + second + third, 2: 1.0, 3: 1 + second, 4: 1.0})
    assert found.unlisted == pytest.approx({"zog": 2 * second})
    held = cache.update(cache.empty(WORDS), found)
    np.testing.assert_allclose(held.counts, [0.0, 1 + second + third, 1.0, 1 + second, 1.0])
    assert (held.utterances, held.pending_utterances) == (1, 1)


def gathered(lists: list[list[str]], sigma: float) -> cache.MarginalCache:
    """The counts of several utterances."""
    return reduce(lambda held, nbest: cache.update(held, count(nbest, WORDS, sigma)), lists, cache.empty(WORDS))


@given(st.lists(texts, max_size=5), texts, st.floats(0.2, 5))
def test_withdrawing_undoes_an_update(before: list[list[str]], given_: list[str], sigma: float) -> None:
    held, counts = gathered(before, sigma), count(given_, WORDS, sigma)
    back = cache.withdraw(cache.update(held, counts), counts)
    np.testing.assert_allclose(back.counts, held.counts, atol=1e-9)
    np.testing.assert_allclose(back.pending, held.pending, atol=1e-9)
    assert dict(back.unlisted) == pytest.approx(dict(held.unlisted))
    assert (back.utterances, back.pending_utterances) == (held.utterances, held.pending_utterances)


@given(st.lists(texts, min_size=1, max_size=5), st.floats(0.2, 5))
def test_unlisted_words_are_counted_one_by_one_and_never_as_one(given_: list[list[str]], sigma: float) -> None:
    held = gathered(given_, sigma)
    assert held.counts[0] == held.pending[0] == 0.0
    assert cache.from_bytes(cache.to_bytes(held, WORDS), WORDS).unlisted == held.unlisted


def test_what_was_once_counted_as_one_is_dropped() -> None:
    content = json.loads(cache.to_bytes(gathered([["get zog"]], 1.0), WORDS))
    content["listed"][UNKNOWN] = [3.0, 2.0]
    held = cache.from_bytes(json.dumps(content).encode(), WORDS)
    assert held.counts.tolist() == held.pending.tolist() == [0, 1, 0, 0, 0] and dict(held.unlisted) == {"zog": 1.0}


def test_each_utterance_is_pending_until_it_is_reported() -> None:
    first = count(["get mocha"], WORDS, 1.0)
    held = cache.reported(cache.update(cache.empty(WORDS), first))
    assert (held.pending.sum(), held.pending_utterances, held.utterances) == (0.0, 0, 1)
    held = cache.update(held, count(["me"], WORDS, 1.0))
    assert held.pending.tolist() == [0, 0, 1, 0, 0] and held.counts.tolist() == [0, 1, 1, 0, 1]
    held = cache.withdraw(held, first)  # what was reported cannot be taken back
    assert held.pending.tolist() == [0, 0, 1, 0, 0] and held.counts.tolist() == [0, 0, 1, 0, 0]


def every(found: PersonalMarginal) -> np.ndarray:
    """g of every word."""
    return mixed(found.mixture, np.arange(len(WORDS)))


def test_marginal_follows_equations_2_and_4() -> None:
    held = cache.update(cache.empty(WORDS), count(["mocha mocha"], WORDS, 1.0))
    weights = CombinationWeights(alpha=0.5, beta=0.25, smoothing=2.0)
    own = (np.array([0, 0, 0, 0, 2.0]) + 2.0 * BACKGROUND) / 4.0
    published = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
    found = cache.personal_marginal(held, WORDS, BACKGROUND, published, weights)
    np.testing.assert_allclose(every(found), 0.25 * BACKGROUND + 0.5 * published + 0.25 * own)
    for nothing_said in (weights, replace(weights, smoothing=0.0)):
        found = cache.personal_marginal(cache.empty(WORDS), WORDS, BACKGROUND, None, nothing_said)
        np.testing.assert_allclose(every(found), BACKGROUND)


def test_what_is_confirmed_counts_more_and_more() -> None:
    """Of words that are on no list nothing is known here, so they are no evidence either."""
    heard = cache.update(cache.empty(WORDS), count(["mocha mocha"], WORDS, 1.0))
    weights = CombinationWeights(language_model=0.25, beta=0.5, smoothing=2.0, marginal=0.25)
    held, ratios, strengths = heard, list[float](), list[float]()
    for _ in range(4):
        found = cache.personal_marginal(held, WORDS, BACKGROUND, None, weights)
        np.testing.assert_allclose(every(found).sum(), 1.0)
        strengths.append(found.strength)
        ratios.append(every(found)[WORDS.id("get")] / BACKGROUND[WORDS.id("get")])
        for _ in range(50):
            held = cache.update(held, UtteranceCounts({}, {}, frozenset({"get", "zog"})))
    assert ratios == sorted(ratios) and ratios[0] < 1 < ratios[1]
    evidence = cache.STRENGTH_EVIDENCE
    assert strengths == pytest.approx([0.25 + (4 - 0.25) * n / (n + evidence) for n in (0, 50, 100, 150)])


@given(st.lists(texts, max_size=4), st.floats(0.3, 4))
def test_bytes_round_trip_exactly(given_: list[list[str]], sigma: float) -> None:
    held = gathered(given_, sigma)
    held = cache.update(cache.reported(held), count(["a"], WORDS, sigma))
    back = cache.from_bytes(cache.to_bytes(held, WORDS), WORDS)
    assert back.counts.tobytes() == held.counts.tobytes() and back.pending.tobytes() == held.pending.tobytes()
    assert (back.unlisted, back.utterances, back.pending_utterances) == (held.unlisted, held.utterances, 1)


def test_a_new_word_list_keeps_the_counts() -> None:
    held = cache.update(cache.empty(WORDS), count(["get me a mocha zog"], WORDS, 1.0))
    other = WordList((UNKNOWN, "zog", "mocha", "new"))
    moved = cache.from_bytes(cache.to_bytes(held, WORDS), other)
    assert moved.counts.tolist() == [0.0, 1.0, 1.0, 0.0]
    assert moved.unlisted == {"get": 1.0, "me": 1.0, "a": 1.0} and moved.words_digest == other.digest
    assert (moved.pending <= moved.counts).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: None,
        lambda content: {**content, "format": 2},
        lambda content: {**content, "listed": {"get": ["x", 0]}},
        lambda content: {**content, "listed": {"get": [-1.0, 0]}},
        lambda content: {**content, "unlisted": {"zog": math.nan}},
        lambda content: {name: value for name, value in content.items() if name != "utterances"},
        lambda content: [],
    ],
)
def test_damaged_bytes_are_refused(change: object) -> None:
    content = json.loads(cache.to_bytes(cache.empty(WORDS), WORDS))
    assert callable(change)
    with pytest.raises(StateError, match="counts/cache"):
        cache.from_bytes(json.dumps(change(content)).encode(), WORDS)
    with pytest.raises(StateError, match="counts/cache"):
        cache.from_bytes(b"\xff\x00", WORDS)


def test_unlisted_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "UNLISTED_LIMIT", 3)
    held = gathered([[word] for word in ("often", "often", "twice", "twice", "once", "rare")], 1.0)
    assert dict(held.unlisted) == {"often": 2.0, "twice": 2.0, "once": 1.0}


LEXICON = SlotLexicon({"drink": ("mocha", "latte"), "size": ("small", "large")})
SMALL = "a small mocha"
NBEST = ("get me a large latte", "get me a small mocha", "give me a small mocha", "get me a mocha")


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        (Accepted(), None),
        (Cancelled(), ()),
        (Repeated(("a large latte",)), ()),
        (Rating(0.4), ()),
        (Rating(0.5), None),
        (Alternate("a small mocha"), None),
        (Corrected("a Small mocha"), ("a small mocha",)),
        (Together((Accepted(), Alternate("a small mocha"))), None),
        (Together((Cancelled(), Corrected(SMALL), Semantics({"drink": "latte"}, LEXICON))), (SMALL,)),
        (Together((Repeated(), Semantics({"drink": "latte", "size": "large"}, LEXICON))), NBEST[:1]),
        (Semantics({"drink": "mocha", "size": "small"}, LEXICON), NBEST[1:3]),
    ],
)
def test_what_counts_after_feedback(signal: Signal, expected: tuple[str, ...] | None) -> None:
    assert confirmed_texts(NBEST, signal) == expected


def test_a_missed_value_is_put_in() -> None:
    slots = {"drink": "mocha", "size": "large"}
    found = confirmed_texts(NBEST, Semantics(slots, LEXICON))
    assert found is not None and [slot_cost(text, slots, LEXICON) for text in found] == [0]
    assert confirmed_texts((), Corrected("mocha")) is None


def test_where_nothing_can_be_repaired_the_nearest_entries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "repair", lambda *_, **__: ())
    signal, nearest = Semantics({"drink": "latte", "size": "small"}, LEXICON), (SMALL, "a large latte")
    assert confirmed_texts(("a large mocha", *nearest), signal) == nearest
