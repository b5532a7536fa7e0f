from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import StateError
from device_sdk.personalization import cache
from rescoring.combination import CombinationWeights
from rescoring.words import UNKNOWN, WordList

WORDS = WordList((UNKNOWN, "get", "me", "a", "mocha"))
BACKGROUND = np.array([0.1, 0.3, 0.3, 0.2, 0.1])

texts = st.lists(st.lists(st.sampled_from(["get", "me", "mocha", "zog", "blip"]), max_size=5).map(" ".join), max_size=4)


def test_counts_weigh_ranks_and_keep_unlisted_words_apart() -> None:
    found = cache.count(["get me a mocha", "get zog a zog", "get"], WORDS, sigma=1.0)
    second, third = math.exp(-0.5), math.exp(-2.0)
    assert found.listed == pytest.approx({0: 2 * second, 1: 1 + second + third, 2: 1.0, 3: 1 + second, 4: 1.0})
    assert found.unlisted == pytest.approx({"zog": 2 * second})
    held = cache.update(cache.empty(WORDS), found)
    np.testing.assert_allclose(held.counts, [2 * second, 1 + second + third, 1.0, 1 + second, 1.0])
    assert (held.utterances, held.pending_utterances) == (1, 1)


def test_a_narrow_kernel_reads_the_first_text_only() -> None:
    assert cache.count(["get me", "mocha"], WORDS, sigma=1e-3).listed == {1: 1.0, 2: 1.0}


@given(st.lists(texts, max_size=5), texts, st.floats(0.2, 5))
def test_withdrawing_undoes_an_update(before: list[list[str]], given_: list[str], sigma: float) -> None:
    held = cache.empty(WORDS)
    for nbest in before:
        held = cache.update(held, cache.count(nbest, WORDS, sigma))
    counts = cache.count(given_, WORDS, sigma)
    back = cache.withdraw(cache.update(held, counts), counts)
    np.testing.assert_allclose(back.counts, held.counts, atol=1e-9)
    np.testing.assert_allclose(back.pending, held.pending, atol=1e-9)
    assert dict(back.unlisted) == pytest.approx(dict(held.unlisted))
    assert (back.utterances, back.pending_utterances) == (held.utterances, held.pending_utterances)


@given(st.lists(texts, min_size=1, max_size=5), st.floats(0.2, 5))
def test_the_bucket_weighs_what_the_unlisted_words_weigh(given_: list[list[str]], sigma: float) -> None:
    held = cache.empty(WORDS)
    for nbest in given_:
        held = cache.update(held, cache.count(nbest, WORDS, sigma))
    assert held.counts[0] == pytest.approx(sum(held.unlisted.values()))
    assert cache.from_bytes(cache.to_bytes(held, WORDS), WORDS).unlisted == held.unlisted


def test_each_utterance_is_pending_until_it_is_reported() -> None:
    first = cache.count(["get mocha"], WORDS, 1.0)
    held = cache.reported(cache.update(cache.empty(WORDS), first))
    assert (held.pending.sum(), held.pending_utterances, held.utterances) == (0.0, 0, 1)
    held = cache.update(held, cache.count(["me"], WORDS, 1.0))
    assert held.pending.tolist() == [0, 0, 1, 0, 0]
    assert held.counts.tolist() == [0, 1, 1, 0, 1]
    held = cache.withdraw(held, first)  # what was reported cannot be taken back
    assert held.pending.tolist() == [0, 0, 1, 0, 0]
    assert held.counts.tolist() == [0, 0, 1, 0, 0]


def test_marginal_follows_equations_2_and_4() -> None:
    held = cache.update(cache.empty(WORDS), cache.count(["mocha mocha"], WORDS, 1.0))
    weights = CombinationWeights(alpha=0.5, beta=0.25, smoothing=2.0)
    own = (np.array([0, 0, 0, 0, 2.0]) + 2.0 * BACKGROUND) / 4.0
    np.testing.assert_allclose(cache.personal(held, BACKGROUND, 2.0), own)
    published = np.array([0.2, 0.2, 0.2, 0.2, 0.2])
    np.testing.assert_allclose(
        cache.marginal(held, BACKGROUND, published, weights), 0.25 * BACKGROUND + 0.5 * published + 0.25 * own
    )
    np.testing.assert_allclose(cache.marginal(cache.empty(WORDS), BACKGROUND, None, weights), BACKGROUND)


@given(st.lists(texts, max_size=4), st.floats(0.3, 4))
def test_bytes_round_trip_exactly(given_: list[list[str]], sigma: float) -> None:
    held = cache.empty(WORDS)
    for nbest in given_:
        held = cache.update(held, cache.count(nbest, WORDS, sigma))
    held = cache.update(cache.reported(held), cache.count(["a"], WORDS, sigma))
    back = cache.from_bytes(cache.to_bytes(held, WORDS), WORDS)
    assert back.counts.tobytes() == held.counts.tobytes()
    assert back.pending.tobytes() == held.pending.tobytes()
    assert (back.unlisted, back.utterances, back.pending_utterances) == (held.unlisted, held.utterances, 1)


def test_a_new_word_list_keeps_the_counts() -> None:
    held = cache.update(cache.empty(WORDS), cache.count(["get me a mocha zog"], WORDS, 1.0))
    other = WordList((UNKNOWN, "zog", "mocha", "new"))
    moved = cache.from_bytes(cache.to_bytes(held, WORDS), other)
    assert moved.counts.tolist() == [3.0, 1.0, 1.0, 0.0]
    assert moved.unlisted == {"get": 1.0, "me": 1.0, "a": 1.0}
    assert moved.words_digest == other.digest
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
    with pytest.raises(StateError, match="marginal cache"):
        cache.from_bytes(json.dumps(change(content)).encode(), WORDS)
    with pytest.raises(StateError, match="marginal cache"):
        cache.from_bytes(b"\xff\x00", WORDS)


def test_unlisted_words_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "UNLISTED_LIMIT", 3)
    held = cache.empty(WORDS)
    for word in ("often", "often", "twice", "twice", "once", "rare"):
        held = cache.update(held, cache.count([word], WORDS, 1.0))
    assert dict(held.unlisted) == {"often": 2.0, "twice": 2.0, "once": 1.0}
    assert held.counts[0] == 6.0


@given(st.lists(texts, min_size=1, max_size=5), st.floats(1, 50))
def test_older_utterances_weigh_less_and_are_still_taken_back_exactly(
    given_: list[list[str]], half_life: float
) -> None:
    held, step = cache.empty(WORDS), 0.5 ** (1 / half_life)
    heard = []
    for nbest in given_:
        heard.append(cache.count(nbest, WORDS, 1.0, order=3, at=held.clock))
        held = cache.update(held, heard[-1], half_life=half_life)
    assert held.recent is not None
    for word in range(len(WORDS)):
        ages = range(len(heard) - 1, -1, -1)
        expected = sum(each.listed.get(word, 0.0) * step**age for each, age in zip(heard, ages, strict=True))
        assert held.recent[word] == pytest.approx(expected)
    without = cache.withdraw(held, heard[0], half_life=half_life)
    again = cache.update(without, heard[0], half_life=half_life)
    assert again.recent is not None
    np.testing.assert_allclose(again.recent, held.recent, atol=1e-9)
    np.testing.assert_allclose(again.counts, held.counts, atol=1e-9)
    assert again.clock == held.clock == len(heard), "counting it in another way is no new utterance"
    for ngram, weight in held.ngrams.ngrams.items():
        assert again.ngrams.ngrams[ngram] == pytest.approx(weight)
    back = cache.from_bytes(cache.to_bytes(held, WORDS), WORDS)
    assert back.recent is not None
    assert back.recent.tobytes() == held.recent.tobytes()
    assert not back.ngrams.ngrams, "an order of words is not among the counts"


def test_decay_moves_the_marginal_to_what_was_said_last() -> None:
    weights = CombinationWeights(alpha=0.0, beta=1.0, smoothing=0.0, half_life=1.0)
    held = cache.empty(WORDS)
    for text in ("mocha", "mocha", "get"):
        held = cache.update(held, cache.count([text], WORDS, 1.0), half_life=1.0)
    np.testing.assert_allclose(cache.marginal(held, BACKGROUND, None, weights), [0, 1 / 1.75, 0, 0, 0.75 / 1.75])


def test_a_round_refreshes_the_marginal_or_an_utterance_does() -> None:
    each = CombinationWeights(alpha=0.0, beta=1.0, smoothing=0.0)
    by_round = CombinationWeights(alpha=0.0, beta=1.0, smoothing=0.0, refresh="round")
    held = cache.reported(cache.update(cache.empty(WORDS), cache.count(["get"], WORDS, 1.0)))
    held = cache.update(held, cache.count(["mocha"], WORDS, 1.0))
    np.testing.assert_allclose(cache.marginal(held, BACKGROUND, None, each), [0, 0.5, 0, 0, 0.5])
    np.testing.assert_allclose(cache.marginal(held, BACKGROUND, None, by_round), [0, 1, 0, 0, 0])
    held = cache.reported(held)
    np.testing.assert_allclose(cache.marginal(held, BACKGROUND, None, by_round), [0, 0.5, 0, 0, 0.5])


def test_counts_by_posterior_as_the_combination_says() -> None:
    weights = CombinationWeights(posterior_scale=1.0, context=1.0, context_order=2)
    found = cache.heard(["get mocha", "get a mocha"], WORDS, weights, [-1.0, -1.0 - math.log(3)])
    assert found.listed == pytest.approx({1: 1.0, 4: 1.0, 3: 0.25})
    assert found.ngrams == pytest.approx({(-1, 1): 1.0, (1, 4): 0.75, (1, 3): 0.25, (3, 4): 0.25})
    by_rank = cache.heard(["get mocha", "get a mocha"], WORDS, CombinationWeights(sigma=1.0))
    assert by_rank == cache.count(["get mocha", "get a mocha"], WORDS, 1.0)


def test_lambda_follows_what_it_would_have_predicted() -> None:
    weights = CombinationWeights(alpha=0.0, beta=0.5, smoothing=1.0, marginal=1.0, automatic=True)
    faithful, fickle = cache.empty(WORDS), cache.empty(WORDS)
    for turn in range(40):
        for name, text in (("faithful", "mocha"), ("fickle", ("get", "me", "a", "mocha")[turn % 4])):
            held = faithful if name == "faithful" else fickle
            adapted = cache.marginal(held, BACKGROUND, None, weights), BACKGROUND
            held = cache.update(held, cache.count([text], WORDS, 1.0), adapted=adapted)
            faithful, fickle = (held, fickle) if name == "faithful" else (faithful, held)
    assert cache.strength(faithful, weights) > 2.0 > cache.strength(fickle, weights)
    assert cache.strength(faithful, CombinationWeights(marginal=1.0)) == 1.0
    back = cache.from_bytes(cache.to_bytes(faithful, WORDS), WORDS)
    assert back.gains == faithful.gains


def test_what_feedback_told_is_kept_beside_what_was_heard() -> None:
    nbest = {"get mocha": -1.0, "get me": -1.0 - math.log(3)}
    counts = cache.taught(cache.count(["get me"], WORDS, 1.0), nbest, ["get me"], WORDS, 1.0)
    assert counts.told == pytest.approx({1: 1.0, 2: 1.0})
    assert counts.guessed == pytest.approx({1: 1.0, 4: 0.75, 2: 0.25})
    mended = cache.taught(counts, nbest, ["get a mocha", "get me a mocha"], WORDS, 1.0)
    assert mended.told == pytest.approx({1: 1.0, 2: 0.5, 3: 1.0, 4: 1.0})
    held = cache.update(cache.empty(WORDS), counts)
    assert held.told is not None and held.guessed is not None
    assert held.told.tolist() == pytest.approx([0, 1, 1, 0, 0])
    back = cache.from_bytes(cache.to_bytes(held, WORDS), WORDS)
    assert back.told is not None and back.guessed is not None
    assert (back.told.tobytes(), back.guessed.tobytes()) == (held.told.tobytes(), held.guessed.tobytes())
    gone = cache.withdraw(held, counts)
    assert gone.told is not None and not gone.told.any()


def test_counts_of_an_earlier_version_are_read() -> None:
    content = {
        "format": 1,
        "words_digest": WORDS.digest,
        "listed": {"get": [2.0, 1.0]},
        "unlisted": {},
        "utterances": 2,
        "pending_utterances": 1,
    }
    held = cache.from_bytes(json.dumps(content).encode(), WORDS)
    assert (held.recent, held.told, held.clock, held.counts[1]) == (None, None, 2, 2.0)
    assert json.loads(cache.to_bytes(held, WORDS)) == content
