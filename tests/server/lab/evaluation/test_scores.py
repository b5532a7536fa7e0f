"""Rates against jiwer on whole corpora, oracle errors, missing labels, and the JSON form."""

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError, DataError
from device_sdk.feedback.slots import SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result, Scores, Word
from server.lab.corpora.utterance import Corpus, Utterance, Waveform
from server.lab.evaluation.scores import Evaluation, Score, differences, evaluate, right_words, score, word_errors

LEXICON = SlotLexicon({"drink": ("mocha", "latte"), "size": ("small", "large")})


def utterance(text: str | None, slots=None, score_words: bool = True, speaker: str = "ann") -> Utterance:
    return Utterance(f"id {text}", speaker, text, slots, score_words, lambda: np.zeros(16_000, np.float32))


def result(*texts: str) -> Result:
    return Result("u", tuple(Hypothesis((), text, (), Scores(0.0), 0.0) for text in texts), 1.0)


def test_a_corpus_is_scored_in_its_order() -> None:
    said = (
        utterance("a small mocha", {"size": "small", "drink": "mocha"}),
        utterance("a latte please", {"drink": "latte"}, score_words=False, speaker="bob"),
        utterance("one two three four"),
    )
    answers = iter([result("a mocha", "a small mocha"), result("a large latte"), result("one two four", "one three")])
    seen: list[Score] = []

    def recognize(waveform: Waveform) -> Result:
        assert waveform.size == 16_000
        return next(answers)

    evaluation = evaluate(recognize, Corpus("made", said, LEXICON), seen.append)
    assert tuple(seen) == evaluation.scores
    figures = evaluation.as_json()
    assert 0 < figures.pop("real_time_factor") < 0.1, "recognition alone is timed"
    assert figures.pop("confidence")["texts"]["count"] == 2
    oracle = {"1": 2 / 7, "4": 1 / 7, "8": 1 / 7}
    assert figures == {"wer": 2 / 7, "slot_error": 2 / 3, "oracle_wer": oracle, "utterances": 3}
    assert evaluation.of_speakers()["bob"].as_json()["wer"] is None
    assert evaluation.of_speakers()["bob"].slot_error == 1.0


def test_slots_need_labels_and_a_lexicon_and_figures_without_labels_are_null() -> None:
    labelled = utterance("a small mocha", {"size": "small"})
    heard = result("a small mocha").nbest
    assert score(labelled, heard, None).slot_errors is None
    assert score(utterance("a small mocha"), heard, LEXICON).slot_errors is None
    assert score(labelled, heard, LEXICON).slot_errors == 1  # the drink was not asked for
    assert Evaluation((score(utterance(None), result("hello").nbest, None),)).as_json() == {
        "wer": None,
        "slot_error": None,
        "oracle_wer": {"1": None, "4": None, "8": None},
        "real_time_factor": None,
        "utterances": 1,
        "confidence": {"words": None, "texts": None},
    }


SENTENCES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=8).map(" ".join)


@given(st.lists(st.tuples(SENTENCES, st.one_of(st.just(""), SENTENCES)), min_size=1, max_size=10))
def test_word_error_is_jiwers(pairs: list[tuple[str, str]]) -> None:
    scores = tuple(score(utterance(reference), result(hypothesis).nbest, None) for reference, hypothesis in pairs)
    references, hypotheses = [reference for reference, _ in pairs], [hypothesis for _, hypothesis in pairs]
    assert Evaluation(scores).wer == pytest.approx(jiwer.wer(references, hypotheses))


@given(SENTENCES, st.lists(SENTENCES, min_size=1, max_size=10))
def test_oracle_error_never_rises_with_depth(reference: str, texts: list[str]) -> None:
    row = score(utterance(reference), result(*texts).nbest, None)
    depths = list(row.oracle_errors.values())
    assert depths == sorted(depths, reverse=True) and depths[0] == row.word_errors == word_errors(reference, texts[0])
    assert depths[-1] == min(word_errors(reference, text) for text in texts[:8])


def test_nothing_to_evaluate_is_refused() -> None:
    with pytest.raises(DataError, match="no utterances"):
        evaluate(lambda waveform: result("x"), Corpus("empty", ()))
    with pytest.raises(DataError, match="empty n-best"):
        score(utterance("a"), [], None)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "right", "errors"),
    [
        ("a small mocha", "a mocha", [True, True], 1),
        ("a small mocha", "a tall mocha please", [True, False, True, False], 2),
        ("", "a b", [False, False], 2),
        ("a", "", [], 1),
        ("", "", [], 0),
    ],
)
def test_right_words(reference: str, hypothesis: str, right: list[bool], errors: int) -> None:
    assert (right_words(reference, hypothesis), word_errors(reference, hypothesis)) == (right, errors)


@given(SENTENCES, SENTENCES)
def test_right_words_are_jiwers_hits(reference: str, hypothesis: str) -> None:
    assert sum(right_words(reference, hypothesis)) == jiwer.process_words(reference, hypothesis).hits


def test_confidences_are_set_against_what_was_said() -> None:
    words = (Word("a", 0.0, 0.1, 0.9), Word("tall", 0.2, 0.5, 0.3), Word("mocha", 0.5, 0.7, 0.6))
    answer = Result("u", (Hypothesis((), "a tall mocha", words, Scores(0.0), 0.0, 0.25),), 1.0)
    said = utterance("a small mocha")
    unsure = utterance("a small mocha", score_words=False)
    evaluation = evaluate(lambda waveform: answer, Corpus("made", (said, unsure)), depths=(1, 20))
    assert evaluation.scores[0].word_confidences == ((0.9, True), (0.3, False), (0.6, True))
    assert evaluation.scores[0].text_confidence == (0.25, False)
    assert evaluation.scores[1].word_confidences == () and evaluation.scores[1].text_confidence is None
    assert evaluation.depths == (1, 20) and set(evaluation.as_json()["oracle_wer"]) == {"1", "20"}
    figures = evaluation.words()
    assert figures is not None and figures.ece == pytest.approx((0.1 + 0.4 + 0.3) / 3)


def scores(errors: list[int], speakers: int, slots: int | None = None) -> Evaluation:
    rows = (
        Score(f"u{place}", f"s{place % speakers}", 10, found, {1: found}, slots, slots and found, 1.0, 0.1)
        for place, found in enumerate(errors)
    )
    return Evaluation(tuple(rows))


def test_rates_differ_by_what_was_counted_and_speakers_are_resampled_unless_they_are_few() -> None:
    found = differences(scores([2, 2, 3, 1, 2, 2], 6), scores([1, 1, 1, 1, 1, 1], 6))
    assert found is not None and found.absolute.excludes_zero
    assert (found.rate_a, found.rate_b, found.groups) == (0.2, 0.1, 6)
    few = differences(scores([1] * 12, 2), scores([0] * 12, 2))
    assert few is not None and few.groups == 12


def test_slots_and_what_cannot_be_compared() -> None:
    assert differences(scores([1, 1], 2), scores([0, 1], 2), "slots") is None
    with_slots = differences(scores([1, 1], 2, slots=2), scores([0, 1], 2, slots=2), "slots")
    assert with_slots is not None and with_slots.rate_b == 0.25
    assert differences(scores([0, 0], 2), scores([1, 0], 2)) is None
    with pytest.raises(ConfigurationError, match="same corpus"):
        differences(scores([1], 1), scores([1, 1], 1))
