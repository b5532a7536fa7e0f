from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError, DataError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result, Scores
from rescoring.combination import CombinationWeights
from rescoring.words import UNKNOWN, WordList
from server.lab.corpora.utterance import Corpus, Utterance
from server.lab.tuning.lists import ListEntry, at_speeds, gather, stack
from server.lab.tuning.search import Grid, edges, marginal_errors, others_marginals, smoothed, tune

WORDS = WordList((UNKNOWN, "play", "some", "jazz", "news", "chess"))
BACKGROUND = np.full(6, 1 / 6)
SMALL = Grid((0.0, 0.3, 0.6), (0.0, 0.5), (0.0,), (-1.0, 0.0), (0.0, 1.0, 2.0, 3.0), (5.0,))


def likes(word: int) -> Any:
    """A language model that likes one word."""

    def model(sentences: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        return [np.array([-0.5 if symbol == word else -3.0 for symbol in sentence] + [-0.1]) for sentence in sentences]

    return model


def entries(speaker: str, heard: str, said: str, gap: float, count: int) -> list[ListEntry]:
    """``count`` utterances where the first pass hears the wrong word by ``gap`` nats."""
    texts = (f"play some {heard}", f"play some {said}")
    return [ListEntry(speaker, texts, (-1.0, -1.0 - gap), texts[1])] * count


def test_stacked_lists_hold_every_part() -> None:
    unlisted = ListEntry("a", ("play jazz", "play zog"), (-1.0, -2.0), "play zog")
    lists = stack([unlisted, ListEntry("b", ("play",), (-3.0,), "play", source="small")], WORDS, likes(3), None)
    assert lists.acoustic.tolist() == [[-1.0, -2.0], [-3.0, -np.inf]] and lists.neural is not None
    np.testing.assert_allclose(lists.neural, [[-3.6, -6.1], [-3.1, 0.0]])
    assert lists.ngram is None and lists.unlisted.tolist() == [[0, 1], [0, 0]]
    assert lists.errors.tolist() == [[1, 0], [0, 0]]
    assert (lists.references.tolist(), len(lists)) == ([2, 1], 2)
    assert (lists.first_pass_error, lists.oracle_error) == (0.25, 0.0), "sources count the same: (1 / 2 + 0 / 1) / 2"
    assert lists.word_error(CombinationWeights(language_model=0.0)) == 0.25
    assert lists.word_error(CombinationWeights(language_model=0.0, unlisted_bonus=2.0)) == 0


def test_a_useful_language_model_is_given_weight_and_a_harmful_one_none() -> None:
    made = entries("a", "news", "jazz", 0.7, 10)
    lists = stack(made, WORDS, likes(3), None)
    start = CombinationWeights(language_model=0.0, marginal=0.0)
    tuned = tune(lists, start, WORDS, BACKGROUND, SMALL)
    assert tuned.weights.language_model > 0 and tuned.weights.ngram_share == start.ngram_share
    assert tuned.rates["first_pass"] == pytest.approx(1 / 3) and tuned.rates["rescored"] == tuned.rates["oracle"] == 0
    made = entries("a", "jazz", "news", -0.4, 10)  # the first pass is right, the model likes the wrong word
    lists = stack(made, WORDS, likes(3), likes(3))
    tuned = tune(lists, CombinationWeights(language_model=0.6), WORDS, BACKGROUND, SMALL)
    assert tuned.weights.language_model == 0.0 and tuned.rates["rescored"] == 0


def test_a_ctc_head_that_hears_better_is_given_weight() -> None:
    texts = ("play some news", "play some jazz")
    made = [ListEntry("a", texts, (-1.0, -1.7), texts[1], ctc=(-4.0, -1.0))] * 10
    tuned = tune(stack(made, WORDS, None, None), CombinationWeights(), WORDS, BACKGROUND, SMALL)
    assert tuned.weights.ctc > 0.3 and tuned.rates["rescored"] == 0 < tuned.rates["first_pass"]
    deaf = [replace(each, ctc=(-1.0, -4.0), acoustic=(-1.7, -1.0)) for each in made]
    assert tune(stack(deaf, WORDS, None, None), CombinationWeights(ctc=0.3), WORDS, BACKGROUND, SMALL).weights.ctc < 0.3


def test_where_nothing_matters_the_start_is_kept() -> None:
    lists = stack([ListEntry("a", ("play",), (-1.0,), "play")], WORDS, None, None)
    start, seen = CombinationWeights(language_model=0.3, marginal=2.0, smoothing=5.0), list[float]()
    assert tune(lists, start, WORDS, BACKGROUND, SMALL, seen.append).weights == start
    assert sum(seen) == pytest.approx(1.0) and min(seen) > 0


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, ()),
        ({"smoothing": 500.0}, ("smoothing",)),
        ({"marginal": 0.0, "ngram_share": 0.0, "beta": 0.0}, ()),  # nothing lies beyond
        ({"marginal": 8.0, "word_bonus": -1.0}, ("word_bonus", "marginal")),
        ({"alpha": 0.75, "beta": 0.25}, ()),  # together the whole
        ({"alpha": 0.75, "beta": 0.1}, ("alpha",)),
    ],
)
def test_a_choice_at_the_edge_of_the_grid_is_named(chosen: dict[str, float], expected: tuple[str, ...]) -> None:
    inside = CombinationWeights(0.3, 0.5, 1.0, -1.0, 1.0, 0.25, 0.25, 1.0, 20.0)
    assert edges(Grid(), replace(inside, **chosen)) == expected


def test_a_speakers_own_words_are_learned_and_only_that_speakers() -> None:
    """Chess is clear at first, then mumbled: the cache has learned it by then. The other speaker never said it."""
    clear = [ListEntry("a", ("play some chess", "play some jazz"), (-1.0, -4.0), "play some chess")] * 6
    texts = ("play some jazz", "play some chess")
    mumbled = [ListEntry(name, texts, (-1.0, -1.05), "play some chess") for name in "ab"]
    lists = stack([*clear, *mumbled], WORDS, None, None)
    off = CombinationWeights(language_model=1.0, marginal=0.0, smoothing=5.0)
    on = CombinationWeights(language_model=1.0, marginal=1.0, smoothing=5.0)
    assert marginal_errors(lists, off, WORDS, BACKGROUND).tolist() == [0] * 6 + [1, 1]
    assert marginal_errors(lists, on, WORDS, BACKGROUND).tolist() == [0] * 6 + [0, 1]
    tuned = tune(lists, off, WORDS, BACKGROUND, SMALL)
    assert tuned.weights.marginal > 0 and tuned.rates["marginals"] < tuned.rates["rescored"]


def test_what_others_say_is_their_counts_without_ones_own() -> None:
    made = [ListEntry(name, (f"play {said}",), (-1.0,), "play", source="app") for name, said in
            (("a", "jazz"), ("b", "chess"), ("b", "chess"), ("c", "news"))]  # fmt: skip
    lists = stack([*made, ListEntry("d", ("news",), (-1.0,), "news", source="other app")], WORDS, None, None)
    found = others_marginals(lists, CombinationWeights(smoothing=6.0), WORDS, BACKGROUND)
    assert found.keys() == {"a", "b", "c"}, "nobody else is where d is"
    np.testing.assert_allclose(found["a"], np.array([1, 1 + 3, 1, 1, 1 + 1, 1 + 2]) / 12)
    np.testing.assert_allclose(found["b"], np.array([1, 1 + 2, 1, 1 + 1, 1 + 1, 1]) / 10)


def test_what_everybody_says_is_given_weight() -> None:
    """Everybody mumbles chess first and says it clearly after: too late to learn it alone, but others have said it."""
    mumbled = ListEntry("", ("play jazz", "play chess"), (-1.0, -1.02), "play chess", source="app")
    clear = ListEntry("", ("play chess", "play jazz"), (-1.0, -4.0), "play chess", source="app")
    made = [replace(each, speaker=name) for name in "abcdef" for each in (mumbled, *[clear] * 4)]
    lists = stack(made, WORDS, None, None)
    start = CombinationWeights(language_model=0.3, marginal=1.0, smoothing=5.0, alpha=0.0, beta=0.25, sigma=1.0)
    tuned = tune(lists, start, WORDS, BACKGROUND, SMALL)
    assert tuned.weights.alpha > 0.0 and tuned.rates["marginals"] == 0 < tuned.rates["rescored"]


def test_counts_by_rank_learn_on_lists() -> None:
    made = [ListEntry("a", ("play some jazz", "play some chess"), (-1.0, -1.3), "play some chess",
                      ("play some chess",))] * 12  # fmt: skip
    lists = stack(made, WORDS, None, None)
    weights = CombinationWeights(language_model=1.0, smoothing=5.0, marginal=2.0)
    found = marginal_errors(lists, weights, WORDS, BACKGROUND)
    assert (found[0], found[-1]) == (1, 0)


def test_smoothing_prefers_a_valley_to_a_lucky_point() -> None:
    assert int(smoothed(np.array([9.0, 1.0, 9.0, 9.0, 3.0, 2.0, 3.0])).argmin()) == 5
    np.testing.assert_allclose(smoothed(np.full((3, 4), 7.0)), 7.0)
    assert smoothed(np.arange(12.0).reshape(3, 4)).shape == (3, 4)


def test_only_sure_words_are_gathered() -> None:
    def recognize(waveform: Any) -> Result:
        return Result("u", (Hypothesis((), "play jazz", (), Scores(-1.5, ctc=-0.5), -1.5),), 0.1)

    def utterance(text: str | None, sure: bool) -> Utterance:
        return Utterance("u", "a", text, None, sure, lambda: np.zeros(10, np.float32))

    found = gather([utterance("play", True), utterance(None, True), utterance("play", False)], recognize)
    assert found == [ListEntry("a", ("play jazz",), (-1.5,), "play", ctc=(-0.5,))]
    with pytest.raises(DataError, match="development data"):
        stack([], WORDS, None, None)


def test_what_slots_confirm_is_counted() -> None:
    """The first pass always hears the wrong word; only the labelled slots tell the device what was said."""
    lexicon = SlotLexicon({"what": ("jazz", "chess")})
    nbest = (
        Hypothesis((), "play some jazz", (), Scores(-1.0), -1.0),
        Hypothesis((), "play some chess", (), Scores(-1.3), -1.3),
    )
    said = Utterance("u", "a", "play some chess", {"what": "chess"}, True, lambda: np.zeros(10, np.float32))
    weights = CombinationWeights(language_model=1.0, marginal=1.0, smoothing=5.0)
    for given, expected in ((lexicon, 0), (None, 1)):
        made = gather([said] * 8, lambda waveform: Result("u", nbest, 0.1), given)
        assert made[0].confirmed == (("play some chess",) if given else None)
        assert marginal_errors(stack(made, WORDS, None, None), weights, WORDS, BACKGROUND)[-1] == expected


def test_each_speaker_once_a_speed_in_order() -> None:
    tone = np.sin(np.arange(1600) / 5).astype(np.float32)
    said = tuple(Utterance(f"u{number}", "ann", "play", None, True, lambda: tone) for number in range(2))
    made = at_speeds(Corpus("made", said), [0.8, 1.0, 1.25])
    assert [(utterance.id, utterance.speaker) for utterance in made.utterances] == [
        (f"u{number}{speed}", f"ann{speed}") for speed in ("-x0.8", "", "-x1.25") for number in (0, 1)
    ]
    assert [utterance.load().size for utterance in made.utterances[::2]] == [2000, 1600, 1280]
    for factors in ([], [9.0], [1.0, float("nan")]):
        with pytest.raises(ConfigurationError, match=r"0\.5 to 2"):
            at_speeds(made, factors)
