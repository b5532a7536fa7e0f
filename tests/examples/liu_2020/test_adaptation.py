"""Algorithm 1: groups, what may be known when, what the server publishes; the devices' own code is the reference."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_sdk.feedback import Accepted, Corrected
from device_sdk.personalization import cache as caches
from device_sdk.wire.messages import MarginalPlan
from examples.liu_2020 import rows
from examples.liu_2020.adaptation import (
    Bounded,
    Exact,
    Method,
    Paper,
    Personal,
    additions,
    baseline,
    begin,
    groups,
    learn,
    simulate,
)
from examples.liu_2020.lists import BANDWIDTH, Client, Heard, Hearing, Listener, listeners, over_heard
from rescoring.combination import CombinationWeights, order, score_nbest
from tests.examples.liu_2020.test_lists import WORDS, background, client

PAPER = CombinationWeights(sigma=5.0, marginal=1.0, smoothing=5.0)
BACKGROUND = background()
CLIENTS = listeners([client(f"A{number}a", number) for number in range(4)], WORDS)
METHODS = {
    "paper": Method(PAPER, renewed="round"),
    "device": Method(replace(PAPER, sigma=1.0), ranks="device"),
}


EXACT = Exact(BACKGROUND, PAPER.smoothing)


@given(st.integers(0, 300), st.integers(0, 20))
def test_groups_divide_the_utterances_in_order_and_evenly(count: int, rounds: int) -> None:
    held = groups(count, rounds)
    assert [number for group in held for number in range(count)[group]] == list(range(count))
    sizes = [group.stop - group.start for group in held]
    assert len(held) == rounds + 1 and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_clients_does_not_matter(name: str) -> None:
    forward, backward = (simulate(held, BACKGROUND, METHODS[name], 3, EXACT) for held in (CLIENTS, CLIENTS[::-1]))
    assert all((a == b).all() for a, b in zip(forward, backward[::-1], strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_the_future_changes_nothing_before_it(name: str) -> None:
    """The second half of every client is other speech; the first half must not notice."""
    half = len(CLIENTS[0]) // 2
    raw = [(client(f"A{number}a", number), client(f"B{number}a", number + 50)) for number in range(4)]
    both = [Client(one.name, (*one.utterances[:half], *other.utterances[half:])) for one, other in raw]
    mixed = listeners(both, WORDS)
    known, changed = (simulate(clients, BACKGROUND, METHODS[name], 3, EXACT) for clients in (CLIENTS, mixed))
    assert all((a[:half] == b[:half]).all() for a, b in zip(known, changed, strict=True))
    assert any((a[half:] != b[half:]).any() for a, b in zip(known, changed, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_words_that_no_list_holds_change_nothing(name: str) -> None:
    """Even where the background holds many of them."""
    heard, u, _ = over_heard(CLIENTS[:2], BACKGROUND)
    assert len(u) < len(BACKGROUND) and u.sum() == pytest.approx(1.0) and u.min() > 0
    exact = Exact(u, PAPER.smoothing)
    whole, alone = (simulate(*given, METHODS[name], 3, server) for given, server in
                    (((CLIENTS[:2], BACKGROUND), EXACT), ((heard, u), exact)))  # fmt: skip
    assert all((a == b).all() for a, b in zip(whole, alone, strict=True))


def test_the_first_group_is_rescored_without_adaptation_and_later_ones_with() -> None:
    plain, adapted = baseline(CLIENTS, PAPER), simulate(CLIENTS, BACKGROUND, METHODS["paper"], 1, EXACT)
    half = len(CLIENTS[0]) // 2
    assert all((a[:half] == b[:half]).all() for a, b in zip(plain, adapted, strict=True))
    assert sum(a.sum() for a in adapted) < sum(a.sum() for a in plain), "topics come back, so this must help"


@pytest.mark.parametrize("server", [None, EXACT])
def test_a_grid_searches_what_rounds_do(server: Exact | None) -> None:
    """What is added at lambda 1 once, times lambda, instead of round after round."""
    how = METHODS["paper"]
    added = additions(CLIENTS, BACKGROUND, how, 3, server)
    for marginal in (0.0, 0.5, 2.0):
        weights = replace(how.weights, marginal=marginal)
        expected = simulate(CLIENTS, BACKGROUND, replace(how, weights=weights), 3, server)
        for each, own, errors in zip(CLIENTS, added, expected, strict=True):
            heard = each.heard
            assert (heard.errors[heard.best(heard.total(weights, marginal * own))] == errors).all()


def test_a_client_hears_of_the_others_through_the_server_alone() -> None:
    """With the personal part left out, a client without a server is a client without marginals."""
    how = Method(replace(PAPER, alpha=0.75, beta=0.0), renewed="round")
    alone, served = (simulate(CLIENTS, BACKGROUND, how, 3, server) for server in (None, EXACT))
    off = simulate(CLIENTS, BACKGROUND, Method(replace(PAPER, marginal=0.0), renewed="round"), 5, EXACT)
    for same in (alone, off):  # off: without lambda nothing is adapted
        assert all((a == b).all() for a, b in zip(same, baseline(CLIENTS, PAPER), strict=True))
    assert any((a != b).any() for a, b in zip(alone, served, strict=True))


@pytest.mark.parametrize("corrects", [False, True])
def test_a_device_on_its_own_does_the_same(corrects: bool) -> None:
    """One client without a server, against the cache and the n-best scoring that devices run."""
    weights, raw = METHODS["device"].weights, client("A1a", 7, 60)
    if corrects:
        right = (replace(nbest, said=nbest.texts[nbest.errors.index(0)]) for nbest in raw.utterances)
        raw = replace(raw, utterances=tuple(right))
    (heard,) = listeners([raw], WORDS)
    assert heard.heard.corrected.any() == corrects
    known, u, expected = caches.empty(WORDS), BACKGROUND, []
    for nbest, told in zip(raw.utterances, heard.heard.corrected.tolist(), strict=True):
        ids = [WORDS.ids(text) for text in nbest.texts]
        personal = caches.personal_marginal(known, WORDS, u, None, weights).scores(ids)
        scores = ([np.array([value]) for value in values] for values in (nbest.neural, nbest.ngram))
        models = {kind: lambda _, own=own: own for kind, own in zip(("neural", "ngram"), scores, strict=True)}
        found = score_nbest(ids, nbest.acoustic, weights, **models, personal=personal)
        ranking = order(found.total)
        expected.append(nbest.errors[ranking[0]])
        texts, signal = [nbest.texts[i] for i in ranking], Corrected(nbest.said) if told else Accepted()
        said = caches.confirmed_texts(texts, signal) or texts
        counts = caches.count_words(said, WORDS, weights)
        confirmed = caches.confirmed_phrases(texts, signal) if told else frozenset()
        known = caches.update(known, replace(counts, confirmed=confirmed))
    (errors,) = simulate([heard], BACKGROUND, METHODS["device"], 0, None)
    assert errors.tolist() == expected and 0 < errors.sum() < len(errors)


FOUR = np.array([0.1, 0.2, 0.3, 0.4])


def device(*counts: float) -> Personal:
    return Personal(np.array(counts), np.array(counts), np.zeros(len(counts)))


DEVICES = [device(5, 5, 0, 0), device(3, 9, 18, 0)]


def test_equation_6_by_hand() -> None:
    """Ten words of one client, thirty of another, no smoothing: what both said over forty. With as many pseudo-words
    as words, a client is half its own and half the background."""
    assert Exact(FOUR, 0.0).publish(DEVICES) == pytest.approx([0.2, 0.35, 0.45, 0.0])
    assert Exact(FOUR, 0.0).publish([begin(4)]) is None, "nobody said anything"
    assert Exact(FOUR, 10.0).publish([device(10, 0, 0, 0)]) == pytest.approx([0.55, 0.1, 0.15, 0.2])


def test_the_papers_noise_vanishes_with_a_large_epsilon_and_outweighs_with_a_small_one() -> None:
    assert Paper(FOUR, 0.0, 1e6).publish(DEVICES) == pytest.approx([0.2, 0.35, 0.45, 0.0], abs=1e-3)
    drawn = [Paper(FOUR, 0.0, 1e-3).publish(DEVICES) for _ in range(40)]
    assert any(found is None for found in drawn) and any(found is not None for found in drawn)
    for found in drawn:
        assert found is None or (found.min() >= 0 and found.sum() == pytest.approx(1))


def test_the_default_adds_up_bounded_counts_and_suppresses_what_lies_within_the_noise() -> None:
    server = Bounded(FOUR, MarginalPlan(max_words=1, max_weight=1.0, epsilon=1e6), smoothing=1.0)
    first = server.publish([device(5, 1, 0, 0), device(0, 9, 2, 0)])
    assert first == pytest.approx((np.array([1, 1, 0, 0]) + FOUR) / 3, abs=1e-3)
    second = server.publish([device(7, 1, 0, 0), begin(4)])
    assert second == pytest.approx((np.array([2, 1, 0, 0]) + FOUR) / 4, abs=1e-3)
    server = Bounded(FOUR, MarginalPlan(epsilon=0.01), suppression=50.0)
    assert server.publish([device(1, 1, 0, 0)]) == pytest.approx(FOUR)
    once = server.variance
    assert server.publish([device(1, 1, 0, 0)]) == pytest.approx(FOUR)
    assert once == pytest.approx(2 * (20 / 0.01) ** 2, rel=1e-3) and server.variance == pytest.approx(2 * once)


TWO = listeners([client(f"A{number}a", number) for number in range(2)], WORDS)
SMALL = {"marginal": (0.0, 0.25, 0.5, 1.0), "language_model": (0.3, 0.6), "word_bonus": (0.0, 1.0)}


def test_the_baseline_is_tuned_first_and_marginals_with_all_that_they_multiply() -> None:
    scales = {"language_model": (0.3, 0.6), "word_bonus": (0.0,), "unlisted_bonus": (0.0,)}
    plain = rows.tuned_baseline(TWO, scales=scales)
    start = Method(replace(plain, marginal=0.5, smoothing=20.0), renewed="round")
    tuned = rows.tuned_marginals(TWO, BACKGROUND, start, 3, SMALL)
    assert tuned.unlisted_bonus == plain.unlisted_bonus and tuned.language_model in SMALL["language_model"]
    assert tuned.marginal * tuned.language_model == pytest.approx(
        min(SMALL["marginal"], key=lambda value: abs(value - tuned.marginal * tuned.language_model))
    )
    adapted = rows.adaptation_errors(TWO, BACKGROUND, Method(tuned, renewed="round"), 3)
    assert adapted < sum(int(errors.sum()) for errors in baseline(TWO, plain))


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ({"marginal": 0.5, "word_bonus": 1.0}, []),
        ({"marginal": 2.0, "word_bonus": 2.0}, ["marginal", "word_bonus"]),
        ({"marginal": 0.0, "word_bonus": 1.0}, []),  # less than nothing is no choice
    ],
)
def test_what_lies_at_an_edge_of_the_grid_is_named(weights: dict[str, float], found: list[str]) -> None:
    """Lambda times the language models' weight, as it is searched."""
    axes = {"marginal": (0.0, 0.25, 1.0), "word_bonus": (-1.0, 1.0, 2.0)}
    assert rows.edges(axes, replace(CombinationWeights(language_model=0.5), **weights)) == found


def _right(heard: Heard) -> NDArray[np.int64]:
    """The words of the entry with the fewest errors."""
    return heard.flat[heard.owner == heard.best(-heard.errors)[0]]


def _lists(one: Listener) -> list[Heard]:
    return [one.heard.part(slice(place, place + 1)) for place in range(len(one))]


@pytest.mark.parametrize("alone", [False, True])
def test_better_counts_make_fewer_errors(alone: bool) -> None:
    start = CombinationWeights(sigma=5.0, marginal=1.0, smoothing=20.0, word_bonus=0.0, alpha=0.0 if alone else 0.5)
    axes = {**SMALL, "marginal": (0.25, 0.5, 1.0)}
    methods, errors = rows.extend(TWO, BACKGROUND, start, 2, axes=axes, alone=alone)
    assert list(methods) == [rows.PERSONAL] * alone + [rows.FOLLOWING, rows.YARDSTICK], "without TRUTH, unknown here"
    assert methods[rows.YARDSTICK].ranks == "errors"
    same = rows.PERSONAL if alone else rows.FOLLOWING  # as often renewed
    assert errors[rows.YARDSTICK] <= errors[same], "better counts, chosen weights"
    assert all(how.weights.alpha == start.alpha for how in methods.values())


def test_a_word_counts_by_how_reliable_it_is() -> None:
    heard = CLIENTS[0].heard.part(slice(0, 1))
    word = int(heard.flat[0])
    worth = np.ones(len(BACKGROUND))
    worth[word] = 0.25
    as_heard, known = (
        learn(begin(len(BACKGROUND)), heard, np.zeros(len(heard.acoustic)), Method(PAPER, reliability=each)).counts
        for each in (None, worth)
    )
    assert known[word] == pytest.approx(as_heard[word] / 4) and as_heard[word] > 0
    assert np.delete(known, word) == pytest.approx(np.delete(as_heard, word))


def test_what_is_known_of_the_recognizer_chooses_how_much_it_is_believed() -> None:
    heard = np.bincount(np.concatenate([one.heard.flat for one in TWO]), minlength=len(BACKGROUND))
    hearing = Hearing(heard.astype(np.float64), BACKGROUND * heard.sum())
    start = CombinationWeights(sigma=5.0, marginal=1.0, smoothing=20.0, word_bonus=0.0, alpha=0.0)
    axes = {**SMALL, "marginal": (0.25, 0.5, 1.0)}
    methods, _ = rows.extend(TWO, BACKGROUND, start, 2, axes=axes, alone=True, hearing=hearing)
    assert list(methods) == [rows.AS_HEARD, rows.PERSONAL, rows.FOLLOWING, rows.YARDSTICK]
    for name, how in methods.items():
        corrected = name in (rows.PERSONAL, rows.FOLLOWING)
        assert (how.reliability is not None) == (how.pseudo in rows.PSEUDO) == corrected
        assert how.weights.sigma == (BANDWIDTH if corrected else start.sigma)


def test_corrections_have_rows_where_what_was_said_is_known() -> None:
    start = CombinationWeights(sigma=5.0, marginal=1.0, smoothing=20.0, word_bonus=0.0, alpha=0.0)
    told = [replace(one, heard=replace(one.heard, said=tuple(map(_right, _lists(one))))) for one in TWO]
    told = [replace(one, heard=replace(one.heard, corrected=np.ones(len(one), np.bool_))) for one in told]
    axes = {**SMALL, "marginal": (0.25, 0.5, 1.0)}
    methods, errors = rows.extend(told, BACKGROUND, start, 2, axes=axes, alone=True)
    alone = [rows.PERSONAL, rows.CORRECTED_ROUNDS]
    following = [rows.FOLLOWING, rows.CORRECTED_FOLLOWING, rows.AS_DEVICES]
    assert list(methods) == [*alone, *following, rows.YARDSTICK, rows.TRUTH]
    assert methods[rows.AS_DEVICES].weights.language_model == start.language_model, "nothing of it is tuned"
    assert methods[rows.CORRECTED_FOLLOWING].renewed == "utterance"
    assert errors[rows.CORRECTED_ROUNDS] == errors[rows.TRUTH], "all are corrected here"


def test_what_was_said_counts_once_a_word() -> None:
    said = np.array([1, 2, 2], np.int64)
    heard = replace(CLIENTS[0].heard.part(slice(0, 1)), said=(said,))
    known = learn(begin(len(BACKGROUND)), heard, np.zeros(len(heard.acoustic)), Method(PAPER, ranks="said"))
    assert known.counts[:4].tolist() == [0.0, 1.0, 2.0, 0.0] and known.counts.sum() == 3.0


def test_what_is_corrected_counts_and_nothing_else() -> None:
    heard = replace(
        CLIENTS[0].heard.part(slice(0, 3)),
        said=(np.array([1, 2, 2], np.int64), np.array([3], np.int64), None),
        corrected=np.array([True, False, True]),
    )
    known = learn(begin(len(BACKGROUND)), heard, np.zeros(len(heard.acoustic)), Method(PAPER, ranks="corrected"))
    assert known.counts[:4].tolist() == [0.0, 1.0, 2.0, 0.0] and known.counts.sum() == 3.0


def test_a_user_corrects_one_utterance_in_five_whose_words_are_known() -> None:
    raw = client("A1a", 0, 600)
    known = replace(raw, utterances=tuple(replace(nbest, said=nbest.texts[0]) for nbest in raw.utterances))
    (heard,), (again,), (nobody,) = (listeners([each], WORDS) for each in (known, known, raw))
    assert 0.15 < heard.heard.corrected.mean() < 0.25 and not nobody.heard.corrected.any()
    assert (heard.heard.corrected == again.heard.corrected).all()


@pytest.mark.parametrize("ranks", ["first", "device", "corrected", "errors", "said"])
def test_a_round_at_once_is_learned_as_its_utterances_are(
    ranks: Literal["first", "device", "corrected", "errors", "said"],
) -> None:
    heard, how = CLIENTS[0].heard, Method(PAPER, ranks=ranks)
    said = tuple(np.array([number % 3, 4]) for number in range(len(heard)))
    heard = replace(heard, said=said, corrected=np.arange(len(heard)) % 5 == 0)
    scores = np.random.default_rng(0).integers(0, 3, len(heard.acoustic)).astype(np.float64)  # some are equal
    one_by_one, begin_at = begin(len(BACKGROUND)), 0
    for number in range(len(heard)):
        one = heard.part(slice(number, number + 1))
        own = scores[begin_at : begin_at + len(one.acoustic)]
        assert one.best(own).tolist() == [int(own.argmax())]
        assert one.ranks(own).tolist() == (np.argsort(np.argsort(-own, kind="stable")) + 1).tolist()
        one_by_one, begin_at = learn(one_by_one, one, own, how), begin_at + len(one.acoustic)
    at_once = learn(begin(len(BACKGROUND)), heard, scores, how)
    assert at_once.counts == pytest.approx(one_by_one.counts, abs=1e-9) and at_once.counts.sum() > 0
    nothing = heard.part(slice(3, 3))
    assert len(nothing) == 0 == len(nothing.best(nothing.acoustic))
    assert learn(at_once, nothing, nothing.acoustic, how).counts == pytest.approx(at_once.counts)
