import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError, DataError
from rescoring.words import UNKNOWN, WordList
from server.lab.training import ngram

WORDS = WordList((UNKNOWN, *(f"w{index}" for index in range(12)), "never"))


def markov_text(sentences: int, seed: int) -> list[list[int]]:
    """Text in which a word decides much about the next one; word 13 never occurs, the bucket 0 does."""
    rng = random.Random(seed)
    following = {word: rng.choices(range(13), k=3) for word in range(13)}
    text = []
    for _ in range(sentences):
        sentence = [rng.randrange(13)]
        while rng.random() < 0.85 and len(sentence) < 12:
            sentence.append(rng.choice(following[sentence[-1]]) if rng.random() < 0.8 else rng.randrange(13))
        text.append(sentence)
    return text


TEXT = markov_text(400, 0)


def total_mass(model: ngram.Ngram, history: list[int]) -> float:
    symbols = range(len(WORDS) + 1)
    return sum(math.exp(ngram.log_probabilities(model, [*history, symbol])[len(history)]) for symbol in symbols)


@pytest.mark.parametrize("cutoffs", [(1,), (1, 1, 2), (1, 3), (1, 2, 1, 4)])
@pytest.mark.parametrize("order", [2, 3, 5])
def test_sums_to_one_for_random_histories(order: int, cutoffs: tuple[int, ...]) -> None:
    model = ngram.estimate(TEXT, WORDS, order, cutoffs)
    for history in [[], [0], [13], *markov_text(20, 1)]:
        assert total_mass(model, history) == pytest.approx(1.0, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 13), max_size=5), min_size=1, max_size=8), st.integers(1, 3))
def test_any_text_gives_a_distribution(text: list[list[int]], cutoff: int) -> None:
    model = ngram.estimate(text, WORDS, 3, (1, cutoff))
    for history in ([], [1], [1, 2], text[0]):
        assert total_mass(model, history) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("name", ["model.arpa", "model.arpa.gz"])
@pytest.mark.parametrize("cutoffs", [(1,), (1, 1, 3)])
def test_kenlm_reads_it_and_agrees(tmp_path: Path, name: str, cutoffs: tuple[int, ...]) -> None:
    pytest.importorskip("kenlm")
    from device_sdk.runtimes.language_model import NgramModel

    model = ngram.estimate(TEXT, WORDS, 5, cutoffs)
    ngram.write_arpa(model, tmp_path / name)
    reader, sentences = NgramModel(tmp_path / name, WORDS), [[], [13, 0], *markov_text(30, 2)]
    for sentence, found in zip(sentences, reader(sentences), strict=True):
        assert found.tolist() == pytest.approx(ngram.log_probabilities(model, sentence), abs=1e-4)


def test_bigram_by_hand() -> None:
    """One sentence type, so every number can be worked out: fallback discounts 0.5, 1.0, 1.5."""
    model = ngram.estimate([[1, 2]] * 3, WordList((UNKNOWN, "a", "b")), 2)
    # Unigrams count left neighbours: a, b and </s> have one each; 3 * 0.5 of 3 goes to 4 uniform symbols.
    assert model.probabilities[0][(1,)] == pytest.approx(0.5 / 3 + 0.5 / 4)
    assert model.probabilities[0][(0,)] == pytest.approx(0.5 / 4)
    # Bigrams occur three times each: (3 - 1.5) / 3 + 0.5 * p(b).
    assert model.probabilities[1][(1, 2)] == pytest.approx(0.5 + 0.5 * (0.5 / 3 + 0.5 / 4))
    assert model.backoffs[0][(1,)] == pytest.approx(0.5)


def test_context_helps_cutoffs_make_it_smaller_and_gzip_is_reproducible(tmp_path: Path) -> None:
    full, cut = ngram.estimate(TEXT, WORDS, 5), ngram.estimate(TEXT, WORDS, 5, (1, 1, 2))
    test, unigrams = markov_text(100, 0)[:50], ngram.estimate(TEXT, WORDS, 2, (1, 10_000))
    assert ngram.perplexity(full, test) < 0.7 * ngram.perplexity(unigrams, test)
    assert math.isnan(ngram.perplexity(full, []))
    assert sum(map(len, cut.probabilities)) < sum(map(len, full.probabilities)) and full.order == 5
    for name in ("one.arpa.gz", "two.arpa.gz", "plain.arpa"):
        ngram.write_arpa(cut, tmp_path / name)
    assert (tmp_path / "one.arpa.gz").read_bytes() == (tmp_path / "two.arpa.gz").read_bytes()
    assert (tmp_path / "plain.arpa").read_bytes() == b"".join(ngram.arpa_lines(cut))


def test_bad_input_is_refused() -> None:
    with pytest.raises(DataError, match="no sentence"):
        ngram.estimate([], WORDS)
    for order, cutoffs, message in ((1, (1,), "order: found 1"), (3, (), "cutoffs"), (3, (1, 0), "cutoffs")):
        with pytest.raises(ConfigurationError, match=message):
            ngram.estimate(TEXT, WORDS, order, cutoffs)
