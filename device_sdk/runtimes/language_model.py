"""The bundle's neural language model on plain onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import metadata, open_session, run

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

FILE = "language_model.onnx"
_PLACES = 64  # words in one run; each needs memory for the whole word list, which is not all given back


class NeuralLanguageModel:
    """Transformer language model of words (Liu & Peng 2020, section 3.2); a ``rescoring.combination.LanguageModel``.

    The graph (``language_model.onnx``) takes words [B, L] int64, which starts with the boundary id n, and targets
    [B, L] int64, and gives log_probs [B, L] float32. Owns an onnxruntime session; safe to call from several threads.
    """

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        path = bundle.file(FILE)
        self._session = open_session(path.read_bytes(), str(path), threads=threads)
        self._boundary = bundle.words.boundary
        said = metadata(self._session, str(path))
        self._positions = _positive(said.get("positions"), f"{path}: metadata positions")
        found, expected = said.get("words_digest"), bundle.words.digest
        if found != expected:
            raise BundleError(
                f"{path}: metadata words_digest is {found!r}, expected {expected!r} as words.txt has; "
                "train the language model on the bundle's own word list"
            )

    def __call__(self, sentences: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """log p(word | words before it) of N sentences -> N arrays, float64 [len(sentence) + 1], nats.

        sentences: word ids, 0 for unlisted words, without boundary ids. A sentence longer than the model's positions
        is scored by windows that overlap by half. A few sentences are one run, and many long ones as many as keep the
        memory of a run bounded.
        """
        results = [np.zeros(len(sentence) + 1) for sentence in sentences]
        group: list[_Row] = []
        longest = 0
        for index, words in enumerate(sentences):
            for start, first, stop in _windows(words, self._positions):
                longest = max(longest, stop - start)
                if group and longest * (len(group) + 1) > _PLACES:
                    self._score(group, sentences, results)
                    group, longest = [], stop - start
                group.append((index, start, first, stop))
        if group:
            self._score(group, sentences, results)
        return results

    def _score(
        self, rows: Sequence[_Row], sentences: Sequence[Sequence[int]], results: Sequence[NDArray[np.float64]]
    ) -> None:
        """One run; writes what it gives to the rows' places in ``results``."""
        longest = max(stop - start for _, start, _, stop in rows)
        words = np.full((len(rows), longest), self._boundary, dtype=np.int64)
        targets = np.full((len(rows), longest), self._boundary, dtype=np.int64)
        for row, (index, start, _, stop) in enumerate(rows):
            symbols = [self._boundary, *sentences[index], self._boundary]
            words[row, : stop - start] = symbols[start:stop]
            targets[row, : stop - start] = symbols[start + 1 : stop + 1]
        log_probs = run(self._session, {"words": words, "targets": targets}, FILE)[0]
        for row, (index, start, first, stop) in enumerate(rows):
            results[index][first:stop] = log_probs[row, first - start : stop - start]


_Row = tuple[int, int, int, int]
"""(number of the sentence, start, first scored, stop) of one window."""


def _windows(words: Sequence[int], positions: int) -> Iterator[tuple[int, int, int]]:
    """(start, first scored, stop) over a sentence's len + 1 inputs: every input is scored exactly once."""
    length = len(words) + 1
    start = first = 0
    while True:
        stop = min(start + positions, length)
        yield start, first, stop
        if stop == length:
            return
        first, start = stop, stop - positions // 2


def _positive(text: str | None, name: str) -> int:
    if text is None or not text.isdigit() or int(text) < 2:
        raise BundleError(f"{name}: found {text!r}, expected a whole number of at least 2")
    return int(text)
