from pathlib import Path

import pytest
import sentencepiece

from device_sdk.errors import ConfigurationError, DataError
from server.lab.corpora.utterance import clean
from server.lab.training.pieces import read_sentences, train_pieces, word_list

LINES = 5 * ["play some music", "stop the music please", "what's the weather", "turn the lights off in the kitchen"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("Play  SOME music!", "play some music"),
        ("what's up?", "what's up"),
        ("I\u2019d like '", "i'd like"),
        ("' a '", "a"),
        ("déjà vu", "deja vu"),
        ("A-B 3 c", "a b c"),
    ],
)
def test_clean(raw: str, expected: str) -> None:
    assert clean(raw) == expected


def test_sentences_are_distinct_with_figures_written_out(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    with pytest.raises(DataError, match="no such text file"):
        read_sentences(path)
    path.write_text("Play it\n\nplay it\nwake me at 7\nstop\n")
    assert read_sentences(path) == ["play it", "wake me at seven", "stop"]
    assert read_sentences(path, english=False) == ["play it", "stop"]
    path.write_text("...\n")
    with pytest.raises(DataError, match="found no sentence"):
        read_sentences(path)


def test_pieces_have_blank_first_and_give_the_text_back() -> None:
    tokenizer = sentencepiece.SentencePieceProcessor(model_proto=train_pieces(LINES, 30))
    assert (tokenizer.get_piece_size(), tokenizer.unk_id()) == (30, 0)
    for line in LINES[:4]:
        tokens = tokenizer.encode(line)
        assert 0 not in tokens and tokenizer.decode(tokens) == line
    with pytest.raises(ConfigurationError, match="5000 pieces cannot be made"):
        train_pieces(LINES, 5000)


def test_word_list_has_unknown_first_then_sorted_words_seen_often() -> None:
    assert word_list(["zebra", "apple"], ["a b", "a c", "a b", "b"]) == ["<unk>", "a", "apple", "b", "zebra"]
