"""The bundle's n-gram through kenlm, where it is installed."""

from __future__ import annotations

import functools
import gzip
import math
import tempfile
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import BundleError

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle
    from rescoring.words import WordList

FILES = ("ngram.arpa", "ngram.arpa.gz")
LARGEST = 1 << 28  # bytes unpacked; a small file could claim any size


class NgramModel:
    """An n-gram in ARPA format over a word list; a ``rescoring.combination.LanguageModel``. Owns a kenlm model."""

    def __init__(self, path: Path, words: WordList) -> None:
        """path: ARPA file, gzipped if its name ends in ``.gz``. Raises BundleError for a file kenlm cannot read."""
        self._words = words
        self._model = _read(path)

    def __call__(self, sentences: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
        """log p(word | words before it) of N sentences -> N arrays, float64 [len(sentence) + 1], nats (ARPA: log10).

        sentences: word ids, 0 for unlisted words, without boundary ids.
        """
        texts = (" ".join(self._words[word] for word in sentence) for sentence in sentences)
        scores = ([value for value, _, _ in self._model.full_scores(text)] for text in texts)
        return [np.array(values) * math.log(10) for values in scores]


def load_ngram(bundle: Bundle) -> NgramModel | None:
    """The bundle's n-gram, or None where the bundle has none or kenlm is not installed (said once, as a warning)."""
    for name in FILES:
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
