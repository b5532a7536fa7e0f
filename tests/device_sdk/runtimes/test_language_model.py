import gzip
import math
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from device_sdk.runtimes import language_model
from device_sdk.runtimes.language_model import NeuralLanguageModel
from device_sdk.runtimes.onnxruntime import run
from rescoring.words import UNKNOWN, WordList
from tests.tiny import tiny_language_model

POSITIONS = 8


@pytest.fixture(scope="module")
def model(tiny_bundle: Bundle) -> NeuralLanguageModel:
    return NeuralLanguageModel(tiny_bundle)


@pytest.fixture(scope="module")
def sentences(tiny_bundle: Bundle) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, len(tiny_bundle.words), length).tolist() for length in (0, 1, 3, 7, 8, 9, 12, 30)]


def test_no_run_holds_more_words_than_memory_is_meant_for(model, sentences, monkeypatch):
    shapes: list[tuple[int, ...]] = []

    def watched(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
        shapes.append(feeds["words"].shape)
        return run(session, feeds, name)

    monkeypatch.setattr(language_model, "run", watched)
    many = [[(word + shift) % 5 for word in each] for shift in range(8) for each in sentences]
    together = model(many)
    assert model([]) == [] and [len(values) for values in together] == [len(each) + 1 for each in many]
    assert len(shapes) > 2 and all(words <= 64 for (words,) in shapes)
    for sentence, values in zip(many, together, strict=True):
        np.testing.assert_allclose(model([sentence])[0], values, atol=1e-5)


def test_what_begins_alike_is_scored_once(model, monkeypatch):
    runs: list[int] = []

    def watched(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
        runs.append(len(feeds["words"]))
        return run(session, feeds, name)

    alike = [[1, 2, 3], [1, 2, 3, 4], [1, 2], [2], [1, 2, 3], []]
    alone = [model([sentence])[0] for sentence in alike]
    monkeypatch.setattr(language_model, "run", watched)
    for own, among in zip(alone, model(alike), strict=True):
        np.testing.assert_allclose(among, own, atol=1e-5)
    assert runs == [3 + 4 + 1 + 2], "words of the longest, the ends of four, and one more"


def test_long_sentences_are_scored_with_half_a_window_of_context(model, tiny_bundle, sentences):
    """The reference runs the graph once per word, on exactly the words that its window shows."""
    session = onnxruntime.InferenceSession(tiny_bundle.file("language_model.onnx"))
    boundary = tiny_bundle.words.boundary
    for sentence in sentences:
        symbols, expected = [boundary, *sentence, boundary], []
        for place in range(len(sentence) + 1):
            half = POSITIONS // 2
            start = 0 if place < POSITIONS else (place - POSITIONS) // half * half + half
            words, targets = np.array(symbols[start : place + 1]), np.array(symbols[start + 1 : place + 2])
            seen = np.tri(len(words), dtype=bool)
            feeds = {"words": words, "targets": targets, "depths": np.arange(len(words)), "seen": seen}
            expected.append(session.run(None, feeds)[0][-1])
        np.testing.assert_allclose(model([sentence])[0], expected, atol=1e-5)


def test_a_probability_that_is_not_finite_is_refused(tmp_path: Path, tiny_bundle: Bundle) -> None:
    graph = onnx.load(tiny_bundle.file("language_model.onnx"))
    bias = next(each for each in graph.graph.initializer if each.name == "bias")
    bias.CopyFrom(onnx.numpy_helper.from_array(np.full(bias.dims, np.nan, np.float32), "bias"))
    onnx.save(graph, tmp_path / "language_model.onnx")
    bundle: Any = SimpleNamespace(words=tiny_bundle.words, file=lambda name: tmp_path / name)
    with pytest.raises(BundleError, match=r"language_model\.onnx: .* not finite"):
        NeuralLanguageModel(bundle)([[1, 2]])


def test_a_graph_for_another_word_list_is_refused(tmp_path: Path, tiny_bundle: Bundle) -> None:
    (tmp_path / "language_model.onnx").write_bytes(tiny_language_model(WordList(("<unk>", "other"))))
    bundle: Any = SimpleNamespace(words=tiny_bundle.words, file=lambda name: tmp_path / name)
    with pytest.raises(BundleError, match="words_digest"):
        NeuralLanguageModel(bundle)


def test_a_graph_that_takes_something_else_is_refused(tmp_path: Path, tiny_bundle: Bundle) -> None:
    graph = onnx.load(tiny_bundle.file("language_model.onnx"))
    graph.graph.input.append(onnx.helper.make_tensor_value_info("order", onnx.TensorProto.INT64, ["K"]))
    onnx.save(graph, tmp_path / "language_model.onnx")
    bundle: Any = SimpleNamespace(words=tiny_bundle.words, file=lambda name: tmp_path / name)
    with pytest.raises(BundleError, match=r"takes .*order.*, expected .*depths.*; train the language model again"):
        NeuralLanguageModel(bundle)


def test_a_damaged_graph_is_named(tmp_path: Path, tiny_bundle: Bundle) -> None:
    bundle: Any = SimpleNamespace(words=tiny_bundle.words, file=lambda name: tmp_path / name)
    (tmp_path / "language_model.onnx").write_bytes(tiny_bundle.file("joiner.onnx").read_bytes()[:50])
    with pytest.raises(BundleError, match=r"language_model\.onnx"):
        NeuralLanguageModel(bundle)


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
    model = language_model.NgramModel(path, WORDS)
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
        language_model.NgramModel(tmp_path / name, WORDS)


def test_a_small_file_that_unpacks_to_a_huge_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kenlm")
    monkeypatch.setattr(language_model, "LARGEST", 100_000)
    (tmp_path / "bomb.arpa.gz").write_bytes(gzip.compress(bytes(100_001)))
    with pytest.raises(BundleError, match=r"bomb\.arpa\.gz: unpacks to more than 100,000 bytes"):
        language_model.NgramModel(tmp_path / "bomb.arpa.gz", WORDS)


def test_a_bundle_without_kenlm_says_so_once(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> None:
    monkeypatch.setitem(sys.modules, "kenlm", None)
    language_model._say_missing.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"idiolect\[ngram\]"):
        assert language_model.load_ngram(tiny_bundle) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert language_model.load_ngram(tiny_bundle) is None
    language_model._say_missing.cache_clear()


def test_a_bundle_without_ngram(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Bundle) -> None:
    monkeypatch.setattr(Bundle, "has", lambda bundle, name: False)
    assert language_model.load_ngram(tiny_bundle) is None
