"""Text that background language models learn from: the command grammar's base split and sentences the user gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import DataError
from rescoring.words import WordList
from server.lab.corpora import grammar
from server.lab.training.pieces import read_sentences

__all__ = ["background_text", "background_unigram", "grammar_text", "read_word_list"]


def grammar_text(count: int, seed: int, split: grammar.Split = "base") -> list[str]:
    """``count`` sentences drawn from one split of the command grammar; common ones repeat."""
    generator = np.random.default_rng(seed)
    return [grammar.sample(generator, split).text for _ in range(count)]


def background_text(texts: Sequence[Path], sentences: int, seed: int) -> list[str]:
    """Sentences of the grammar's base split and of text files (one sentence a line, each distinct one once), shuffled.

    Raises DataError for a file that is missing or empty, and where there is no sentence at all.
    """
    found = grammar_text(sentences, seed)
    for path in texts:
        found += read_sentences(path)
    if not found:
        raise DataError("background text: found no sentence; raise --sentences or give --text")
    order = np.random.default_rng(seed).permutation(len(found))
    return [found[index] for index in order]


def background_unigram(sentences: Iterable[str], words: WordList, least: float = 0.5) -> NDArray[np.float64]:
    """u of Liu & Peng 2020: the text's word distribution over the list -> float64 [n], positive, sums to 1.

    least: added to every count, so that a listed word the text lacks has a probability too (eq. 1 divides by it).
    """
    counts = Counter(word for sentence in sentences for word in words.ids(sentence))
    values = np.array([counts[word] + least for word in range(len(words))], dtype=np.float64)
    return np.asarray(values / values.sum(), dtype=np.float64)


def read_word_list(path: Path) -> WordList:
    """Read ``words.txt``. Raises DataError naming the file and line."""
    if not path.is_file():
        raise DataError(f"{path}: no such word list; expected one word a line, <unk> first")
    try:
        return WordList.parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
