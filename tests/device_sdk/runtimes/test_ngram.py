from __future__ import annotations

import gzip
import math
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from device_sdk.runtimes import ngram
from rescoring.words import UNKNOWN, WordList

ARPA = """\\data\\
ngram 1=4
ngram 2=2

\\1-grams:
-1.0\t<unk>\t0
-99\t<s>\t-0.3
-0.5\t</s>
-0.4\ta\t-0.2

\\2-grams:
-0.2\t<s> a
-0.3\ta </s>

\\end\\
"""
WORDS = WordList((UNKNOWN, "a", "b"))


@pytest.mark.parametrize("packed", [False, True])
def test_natural_logarithms_word_by_word(tmp_path: Path, packed: bool) -> None:
    pytest.importorskip("kenlm")
    path = tmp_path / ("model.arpa.gz" if packed else "model.arpa")
    path.write_bytes(gzip.compress(ARPA.encode()) if packed else ARPA.encode())
    model = ngram.NgramModel(path, WORDS)
    one, two, none = model([[1], [0, 1, 2], []])
    np.testing.assert_allclose(one, np.array([-0.2, -0.3]) * math.log(10), atol=1e-6)
    # <unk> backs off from <s>; a after it; b is listed but not in the model, so it is unknown to it.
    np.testing.assert_allclose(two, np.array([-1.3, -0.4, -1.2, -0.5]) * math.log(10), atol=1e-6)
    np.testing.assert_allclose(none, np.array([-0.8]) * math.log(10), atol=1e-6)
    assert model([]) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bad.arpa", b"\\data\\\nngram 1=9\n"),
        ("odd.arpa", ARPA.encode().replace(b"a </s>", b"\xe4\xb5 </s>")),
        ("bad.arpa.gz", b"not gzip"),
        ("cut.arpa.gz", gzip.compress(ARPA.encode(), mtime=0)[:60]),
        ("odd.arpa.gz", gzip.compress(ARPA.encode(), mtime=0)[:20] + bytes(40)),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    pytest.importorskip("kenlm")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        ngram.NgramModel(tmp_path / name, WORDS)


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kenlm")
    monkeypatch.setattr(ngram, "LARGEST", 100_000)
    (tmp_path / "bomb.arpa.gz").write_bytes(gzip.compress(bytes(100_001)))
    with pytest.raises(BundleError, match=r"bomb\.arpa\.gz: unpacks to more than 100,000 bytes"):
        ngram.NgramModel(tmp_path / "bomb.arpa.gz", WORDS)


def test_a_bundle_without_kenlm_says_so_once(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    ngram._say_missing.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"idiolect\[ngram\]"):
        assert ngram.load_ngram(tiny_bundle) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ngram.load_ngram(tiny_bundle) is None
    ngram._say_missing.cache_clear()


def test_a_bundle_without_ngram(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> None:
    monkeypatch.setattr(Bundle, "has", lambda bundle, name: False)
    assert ngram.load_ngram(tiny_bundle) is None
