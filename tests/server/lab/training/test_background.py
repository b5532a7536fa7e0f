from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import DataError
from rescoring.words import UNKNOWN, WordList
from server.lab.corpora.grammar import split_of, vocabulary
from server.lab.training.background import (
    TextSources,
    _shares,
    background_text,
    background_unigram,
    grammar_text,
    read_word_list,
    run_words,
)


def test_grammar_text_stays_in_its_split_and_its_unigram_is_positive() -> None:
    text = grammar_text(50, 0)
    assert len(text) == 50 and {split_of(sentence) for sentence in text} == {"base"}
    assert text == grammar_text(50, 0) != grammar_text(50, 1)
    words = WordList((UNKNOWN, "play", "never"))
    np.testing.assert_allclose(background_unigram(["play play x"], words), np.array([1.5, 2.5, 0.5]) / 4.5)


def test_background_text_holds_files_and_grammar(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("Xylophones, please!\nxylophones please\nplay the zither\n")
    text = background_text([tmp_path / "mine.txt"], 30, 0)
    assert len(text) == 32 and {"xylophones please", "play the zither"} <= set(text)
    with pytest.raises(DataError, match="no sentence"):
        background_text([], 0, 0)
    with pytest.raises(DataError, match=r"absent\.txt"):
        background_text([tmp_path / "absent.txt"], 1, 0)


def test_listed_words_are_english_most_frequent_first_and_the_grammar_is_among_them(tmp_path: Path) -> None:
    pytest.importorskip("wordfreq")
    (tmp_path / "mine.txt").write_text("zither zither zither xqzv\n" * 3 + "zither and a kazoo\n")
    sources = TextSources(tmp_path / "words.txt", (tmp_path / "mine.txt",), 30, (tmp_path / "mine.txt",))
    summary = run_words(sources, 2_000, "idiolect train words")
    words = read_word_list(tmp_path / "words.txt")
    assert len(words) == summary["words"] == 2_000 and set(vocabulary()) <= set(words.words)
    assert "zither" in words.words[:50] and "kazoo" in words and "xqzv" not in words
    assert words.id("the") < words.id("kitchen") < words.id("thermostat")
    assert summary["coverage"] == {"grammar": 100.0, "mine.txt": pytest.approx(100 * 7 / 8)}


def test_rare_words_share_a_row_by_how_frequent_they_are() -> None:
    shares = _shares(np.array([0.1, 0.4, 0.3, 0.15, 0.05]), 3)
    np.testing.assert_allclose(np.exp(shares), [1 / 3, 1, 1, 1 / 2, 1 / 6, 1])


def test_word_list_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    with pytest.raises(DataError, match="no such word list"):
        read_word_list(path)
    path.write_text("play\n")
    with pytest.raises(DataError, match=r"words\.txt: word list, line 1"):
        read_word_list(path)
    path.write_text("<unk>\nplay\n")
    assert len(read_word_list(path)) == 2
