"""A bundle's language models: the neural one on plain onnxruntime, the n-gram through kenlm, where it is installed."""

from __future__ import annotations

import functools
import gzip
import math
import tempfile
import warnings
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import metadata, open_session, run

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from rescoring.words import WordList

FILE = "language_model.onnx"
_PLACES = 64  # words in one run; each needs memory for the whole word list, which is not all given back


class NeuralLanguageModel:
    """Transformer language model of words (Liu & Peng 2020, section 3.2); a ``rescoring.combination.LanguageModel``.
    The graph (``language_model.onnx``) takes the words of a :class:`_Tree`, and gives log_probs [K] float32. Owns an
    onnxruntime session; safe to call from several threads."""

    def __init__(self, bundle: Bundle, threads: int = 1) -> None:
        path = bundle.file(FILE)
        self._session, self._positions = open_graph(path.read_bytes(), bundle.words, str(path), threads)
        self._boundary = bundle.words.boundary

    def __call__(self, sentences: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """log p(word | words before it) of N sentences -> N arrays, float64 [len(sentence) + 1], nats. sentences: word
        ids, 0 for unlisted words, without boundary ids. What begins alike is scored once. A sentence longer than the
        model's positions is scored by windows that overlap by half. A few sentences are one run; many, as many as bound
        its memory."""
        results = [np.zeros(len(sentence) + 1) for sentence in sentences]
        rows = list[_Row]()
        for index, words in enumerate(sentences):
            symbols = (self._boundary, *words, self._boundary)
            rows += [
                (symbols[start : stop + 1], index, start, first)
                for start, first, stop in _windows(words, self._positions)
            ]
        tree, held = _Tree(), list[tuple[_Row, list[int]]]()
        for row in sorted(rows):  # none before has more in common with a row than the last one
            shared = held[-1][1][: _alike(row[0], held[-1][0][0])] if held else []
            if held and len(tree.words) + len(row[0]) - 1 - len(shared) > _PLACES:
                self._score(tree, held, results)
                tree, held, shared = _Tree(), [], []
            held.append((row, tree.add(row[0], shared)))
        if held:
            self._score(tree, held, results)
        return results

    def _score(
        self, tree: _Tree, held: Sequence[tuple[_Row, list[int]]], results: Sequence[NDArray[np.float64]]
    ) -> None:
        """One run; writes what it gives to the rows' places in ``results``."""
        log_probs = run(self._session, tree.feeds(), FILE)[0]
        if not np.isfinite(log_probs).all():
            raise BundleError(f"{FILE}: found a log probability that is not finite; export the bundle again")
        for (_, index, start, first), path in held:
            results[index][first : start + len(path)] = log_probs[path[first - start :]]


_Row = tuple[tuple[int, ...], int, int, int]
"""(symbols, number of the sentence, start, first scored) of one window: all symbols but the last are words that the
model hears, all but the first are targets."""


def _alike(symbols: Sequence[int], others: Sequence[int]) -> int:
    """How many words, and their targets with them, two windows begin with alike."""
    pairs = zip(pairwise(symbols), pairwise(others), strict=False)
    return sum(1 for _ in takewhile(lambda each: each[0] == each[1], pairs))


class _Tree:
    """Windows with what begins alike once. K: its words, each with what was before it and one target. ``words``,
    ``targets``, ``depths``: [K], how many words are before each."""

    def __init__(self) -> None:
        self.words, self.targets, self.depths = list[int](), list[int](), list[int]()
        self._before = list[int]()

    def add(self, symbols: Sequence[int], shared: Sequence[int]) -> list[int]:
        """The places [L] of a window's words, of which the first are ``shared`` with another window."""
        path = [*shared]
        for depth in range(len(path), len(symbols) - 1):
            self._before.append(path[-1] if path else -1)
            path.append(len(self.words))
            self.words.append(symbols[depth])
            self.targets.append(symbols[depth + 1])
            self.depths.append(depth)
        return path

    def feeds(self) -> dict[str, NDArray[Any]]:
        """words, depths, targets: [K] int64; seen: [K, K] bool, what each word may look at: itself and those before."""
        seen = np.eye(len(self.words), dtype=bool)
        for place, before in enumerate(self._before):
            if before >= 0:
                seen[place] |= seen[before]
        lists = {"words": self.words, "depths": self.depths, "targets": self.targets}
        return {"seen": seen, **{name: np.array(values, np.int64) for name, values in lists.items()}}


_INPUTS = {"words", "depths", "seen", "targets"}


def open_graph(graph: bytes, words: WordList, source: str, threads: int = 1) -> tuple[Any, int]:
    """The session of a language model's graph, and how many words it takes at once. Raises BundleError for what is no
    such graph, and for one of other words."""
    session = open_session(graph, source, threads=threads)
    said, takes = metadata(session, source), {each.name for each in session.get_inputs()}
    if takes != _INPUTS:
        raise BundleError(
            f"{source}: takes {sorted(takes)}, expected {sorted(_INPUTS)}; train the language model again"
        )
    positions = _positive(said.get("positions"), f"{source}: metadata positions")
    if (found := said.get("words_digest")) != words.digest:
        raise BundleError(
            f"{source}: metadata words_digest is {found!r}, expected {words.digest!r} as words.txt has; "
            "train the language model on the bundle's own word list"
        )
    return session, positions


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


NGRAM_FILES = ("ngram.arpa", "ngram.arpa.gz")
LARGEST = 1 << 28  # bytes unpacked; a small file could claim any size


class NgramModel:
    """An n-gram in ARPA format over a word list; a ``rescoring.combination.LanguageModel``. Owns a kenlm model."""

    def __init__(self, path: Path, words: WordList) -> None:
        """path: ARPA file, gzipped if its name ends in ``.gz``. Raises BundleError for a file kenlm cannot read."""
        self._words = words
        self._model = _read(path)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """log p(word | words before it) of N sentences -> N arrays, float64 [len(sentence) + 1], nats; of ids."""
        texts = (" ".join(self._words[word] for word in sentence) for sentence in sentences)
        scores = ([value for value, _, _ in self._model.full_scores(text)] for text in texts)
        return [np.array(values) * math.log(10) for values in scores]


def load_ngram(bundle: Bundle) -> NgramModel | None:
    """The bundle's n-gram, or None where the bundle has none or kenlm is not installed (said once, as a warning)."""
    for name in NGRAM_FILES:
        if bundle.has(name):
            try:
                return NgramModel(bundle.file(name), bundle.words)
            except ImportError:
                _say_missing()
                return None
    return None


@functools.cache
def _say_missing() -> None:
    warnings.warn(
        "kenlm is not installed: rescoring goes on without the n-gram; pip install 'idiolect[ngram]' (needs a C++ "
        "compiler) turns it on",
        RuntimeWarning,
        stacklevel=3,
    )


def _read(path: Path) -> Any:
    import kenlm

    settings = kenlm.Config()
    settings.show_progress = False
    settings.arpa_complain = kenlm.ARPALoadComplain.NONE
    try:
        if path.suffix != ".gz":
            return kenlm.Model(str(path), settings)
        # kenlm reads gzip only where it was compiled with zlib, so it gets plain text.
        with tempfile.TemporaryDirectory(prefix="idiolect-ngram-") as folder:
            plain = Path(folder) / "ngram.arpa"
            with gzip.open(path) as packed:
                content = packed.read(LARGEST + 1)
            if len(content) > LARGEST:
                raise BundleError(f"{path}: unpacks to more than {LARGEST:,} bytes, expected less; estimate it again")
            plain.write_bytes(content)
            return kenlm.Model(str(plain), settings)
    except (OSError, EOFError, RuntimeError, ValueError, zlib.error) as error:  # ValueError: kenlm, of bytes not UTF-8
        raise BundleError(f"{path}: kenlm cannot read this n-gram ({error}); estimate it again") from error
