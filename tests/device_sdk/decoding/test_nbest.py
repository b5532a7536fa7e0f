from __future__ import annotations

import numpy as np
import pytest

from device_sdk.decoding.beam import Path
from device_sdk.decoding.nbest import distinct, word_times
from device_sdk.hypothesis import Word


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
    assert found[0].tokens == tokenizer.encode("Aa")
    assert found[0].score == pytest.approx(np.logaddexp(-2.0, -2.5))
    assert found[0].scores.acoustic == found[0].score
    assert found[2].words == ()
