from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.decoding.beam import Path
from device_sdk.decoding.nbest import (
    agreement,
    coverage,
    distinct,
    likeliest,
    with_confidence,
    word_posteriors,
    word_times,
)
from device_sdk.hypothesis import Hypothesis, Scores, Word
from rescoring.combination import Calibration, CombinationWeights, Curve


class Letters:
    """A tokenizer of single letters: upper case starts a word, 0 is blank, ``_`` is a bare word boundary."""

    PIECES = "?ABab_"

    def starts_word(self, token):
        return self.PIECES[token].isupper() or self.PIECES[token] == "_"

    def decode(self, tokens):
        pieces = (self.PIECES[token] for token in tokens)
        text = "".join(" " if piece == "_" else f" {piece.lower()}" if piece.isupper() else piece for piece in pieces)
        return " ".join(text.split())

    def encode(self, text):
        return tuple(self.PIECES.index(letter) for letter in text)


@pytest.mark.parametrize(
    ("pieces", "frames", "expected"),
    [
        ("", (), ()),
        ("A", (3,), (Word("a", 0.3, 0.4),)),
        ("Aab", (0, 2, 4), (Word("aab", 0.0, 0.5),)),
        ("AaB", (1, 1, 7), (Word("aa", 0.1, 0.2), Word("b", 0.7, 0.8))),
        ("abA", (1, 2, 3), (Word("ab", 0.1, 0.3), Word("a", 0.3, 0.4))),
        ("A_b", (1, 2, 5), (Word("a", 0.1, 0.2), Word("b", 0.2, 0.6))),
        ("_aA", (1, 2, 5), (Word("a", 0.1, 0.3), Word("a", 0.5, 0.6))),
        ("__b", (1, 2, 5), (Word("b", 0.1, 0.6),)),
        ("A_", (1, 2), (Word("a", 0.1, 0.2),)),
        ("_", (1,), ()),
        ("AB", (1, 9), (Word("a", 0.1, 0.2), Word("b", 0.9, 0.95))),
    ],
)
def test_words_have_the_times_of_their_pieces(pieces, frames, expected):
    tokenizer = Letters()
    found = word_times(tokenizer.encode(pieces), frames, tokenizer, 0.1, 0.95)
    assert [word.text for word in found] == [word.text for word in expected]
    times = [(word.start, word.end) for word in found]
    np.testing.assert_allclose(times, [(word.start, word.end) for word in expected], atol=1e-9)
    assert " ".join(word.text for word in found) == tokenizer.decode(tokenizer.encode(pieces))


def test_hypotheses_of_one_text_become_one():
    tokenizer = Letters()
    listed = [
        Path(tokenizer.encode("Aa"), -2.0, (0, 1)),
        Path(tokenizer.encode("B"), -1.9, (3,)),
        Path(tokenizer.encode("_aa"), -2.5, (0, 1, 2)),
        Path((), -9.0, ()),
    ]
    found = distinct(listed, tokenizer, 0.03, 1.0)
    assert [hypothesis.text for hypothesis in found] == ["aa", "b", ""]
    assert found[0].tokens == tokenizer.encode("Aa") and found[2].words == ()
    assert found[0].scores.acoustic == found[0].score == pytest.approx(np.logaddexp(-2.0, -2.5))


def words(text: str, *ends: float) -> tuple[Word, ...]:
    times = ends or tuple(0.3 * (place + 1) for place in range(len(text.split())))
    return tuple(Word(word, end - 0.1, end) for word, end in zip(text.split(), times, strict=True))


def hypothesis(text: str, probability: float, *ends: float) -> Hypothesis:
    score = float(np.log(probability))
    return Hypothesis((), text, words(text, *ends), Scores(score), score)


@pytest.mark.parametrize(
    ("one", "other", "pairs"),
    [
        (words("a small mocha"), words("a small mocha"), [(0, 0), (1, 1), (2, 2)]),
        (words("a small mocha"), words("a tall mocha"), [(0, 0), (2, 2)]),
        (words("a mocha", 0.3, 0.9), words("a small mocha"), [(0, 0), (1, 2)]),
        (words("a mocha", 0.3, 0.6), words("a small mocha"), [(0, 0), (1, 2)]),
        (words("five five", 0.4, 1.0), words("five", 1.0), [(1, 0)]),
        (words("five five", 0.4, 1.0), words("five", 0.4), [(0, 0)]),
        (words("five five", 0.4, 1.0), words("five", 0.8), [(1, 0)]),
        (words("five five", 0.4, 1.0), words("five", 0.5), [(0, 0)]),
        (words(""), words("a"), []),
        (words("b a"), words("a b"), []),  # two substitutions are as few edits as a deletion and an insertion
    ],
)
def test_agreement_table(one: tuple[Word, ...], other: tuple[Word, ...], pairs: list[tuple[int, int]]) -> None:
    assert list(agreement(one, other)) == pairs


SPOKEN = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 40)), max_size=7, unique_by=lambda pair: pair[1]
).map(lambda pairs: tuple(Word(text, at / 10 - 0.05, at / 10) for text, at in sorted(pairs, key=lambda p: p[1])))


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_without_common_times_the_edits_are_fewest(one: list[str], other: list[str]) -> None:
    late = tuple(Word(text, 100.0 + at, 100.2 + at) for at, text in enumerate(other))
    found = list(agreement(words(" ".join(one)), late))
    table = np.zeros((len(one) + 1, len(other) + 1), int)
    table[0], table[:, 0] = range(len(other) + 1), range(len(one) + 1)
    for i, a in enumerate(one, 1):
        for j, b in enumerate(other, 1):
            table[i, j] = min(table[i - 1, j - 1] + (a != b), table[i - 1, j] + 1, table[i, j - 1] + 1)
    ends = [(-1, -1), *found, (len(one), len(other))]
    edits = sum(max(b[0] - a[0], b[1] - a[1]) - 1 for a, b in pairwise(ends))
    assert edits == table[-1, -1]


@given(st.lists(SPOKEN, min_size=1, max_size=5))
def test_words_that_hypotheses_share_change_nothing(said: list[tuple[Word, ...]]) -> None:
    one = {(word.text, word.start): word for each in said for word in each}
    shared, apart = (
        [Hypothesis((), "", found, Scores(0.0), 0.0) for found in listed]
        for listed in ([tuple(one[word.text, word.start] for word in each) for each in said], said)
    )
    shares = np.random.default_rng(len(said)).dirichlet(np.ones(len(said))).tolist()
    for mine, other in zip(word_posteriors(shared, shares), word_posteriors(apart, shares), strict=True):
        assert mine == pytest.approx(other, abs=1e-12)


def test_a_word_is_as_sure_as_the_hypotheses_that_say_it() -> None:
    listed = [hypothesis("make a mocha", 0.5), hypothesis("make an mocha", 0.3)]
    listed.append(hypothesis("make mocha", 0.2, 0.3, 0.9))
    found = word_posteriors(listed, [0.5, 0.3, 0.2])
    assert found == [pytest.approx([1.0, 0.5, 1.0]), pytest.approx([1.0, 0.3, 1.0]), pytest.approx([1.0, 1.0])]
    first, second, _ = with_confidence(listed, Calibration())
    assert [word.confidence for word in first.words] == pytest.approx([1, 0.5, 1], abs=2e-4)
    assert (first.confidence, second.confidence) == pytest.approx((0.5, 0.3))
    assert first.text == "make a mocha" and first.words[1].end == 0.6


def test_calibration_is_applied_to_words_and_texts_apart() -> None:
    listed = [hypothesis("a", 0.08), hypothesis("b", 0.02)]
    assert coverage(listed) == pytest.approx(np.log(0.1))
    curves = Calibration(1.0, Curve(0.0, 0.0), Curve(1.0, 0.0, 1.0))
    found = with_confidence(listed, curves)
    assert [each.words[0].confidence for each in found] == [0.5, 0.5]
    assert found[0].confidence == pytest.approx(1 / (1 + 1 / (0.8 / 0.2 * 0.1)))
    flat = with_confidence(listed, Calibration(scale=1e-9))
    assert [each.confidence for each in flat] == pytest.approx([0.5, 0.5])


def test_a_hypothesis_alone_has_curves_of_its_own() -> None:
    curves = Calibration(greedy_word=Curve(0.0, 1.0, 0.5), greedy_text=Curve(0.0, -1.0))
    (found,) = with_confidence([hypothesis("a b", 0.1)], curves)
    assert found.confidence == pytest.approx(1 / (1 + np.exp(1)))
    expected = 1 / (1 + np.exp(-(1 + 0.5 * np.log(0.1))))
    assert [word.confidence for word in found.words] == pytest.approx([expected] * 2)


@pytest.mark.parametrize("texts", [[], [""], ["", "a"]])
def test_empty_lists_and_texts(texts: list[str]) -> None:
    found = with_confidence([hypothesis(text, 0.5) for text in texts], Calibration())
    assert [each.text for each in found] == texts and all(0 <= each.confidence <= 1 for each in found)


def test_the_likeliest_are_so_by_all_scores_but_language_models() -> None:
    word = Word("a", 0.0, 1.0)
    given = [
        Hypothesis((), "0", (word,), Scores(acoustic=-1.0, ctc=-9.0), 0.0),
        Hypothesis((), "1", (word,), Scores(acoustic=-2.0, ctc=-2.0), 0.0),
        Hypothesis((), "2", (word, word), Scores(acoustic=-4.0, ctc=-3.0), 0.0),
        Hypothesis((), "3", (word,), Scores(acoustic=-8.0, hotword=5.0, pieces=1.5, ctc=-2.0, neural=-99.0), 0.0),
    ]
    weights = CombinationWeights(ctc=1.0, word_bonus=2.0)  # totals: -8, -2, -3, -1.5
    for most, kept in ((1, "3"), (2, "13"), (3, "123"), (4, "0123"), (9, "0123")):
        assert "".join(each.text for each in likeliest(given, weights, most)) == kept
