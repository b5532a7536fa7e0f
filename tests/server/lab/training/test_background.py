from pathlib import Path

import numpy as np
import pytest

from device_sdk.errors import DataError
from rescoring.words import UNKNOWN, WordList
from server.lab.corpora.grammar import split_of
from server.lab.training.background import background_text, background_unigram, grammar_text, read_word_list


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


def test_word_list_file(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    with pytest.raises(DataError, match="no such word list"):
        read_word_list(path)
    path.write_text("play\n")
    with pytest.raises(DataError, match=r"words\.txt: word list, line 1"):
        read_word_list(path)
    path.write_text("<unk>\nplay\n")
    assert len(read_word_list(path)) == 2
