from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import BundleError
from device_sdk.runtimes import language_model
from device_sdk.runtimes.language_model import NeuralLanguageModel, _windows
from device_sdk.runtimes.onnxruntime import run
from rescoring.words import WordList
from tests.tiny import tiny_language_model

POSITIONS = 8


@pytest.fixture(scope="module")
def model(tiny_bundle: Bundle) -> NeuralLanguageModel:
    return NeuralLanguageModel(tiny_bundle)


@pytest.fixture(scope="module")
def sentences(tiny_bundle: Bundle) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, len(tiny_bundle.words), length).tolist() for length in (0, 1, 3, 7, 8, 9, 12, 30)]


def test_no_run_holds_more_words_than_memory_is_meant_for(
    model: NeuralLanguageModel, sentences: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: list[tuple[int, ...]] = []

    def watched(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
        shapes.append(feeds["words"].shape)
        return run(session, feeds, name)

    monkeypatch.setattr(language_model, "run", watched)
    together = model(8 * sentences)
    assert model([]) == [] and [len(values) for values in together] == [len(each) + 1 for each in 8 * sentences]
    assert len(shapes) > 2
    assert all(rows * longest <= 64 for rows, longest in shapes)
    for sentence, values in zip(8 * sentences, together, strict=True):
        np.testing.assert_allclose(model([sentence])[0], values, atol=1e-5)


def test_long_sentences_are_scored_with_half_a_window_of_context(
    model: NeuralLanguageModel, tiny_bundle: Bundle, sentences: list[list[int]]
) -> None:
    """The reference runs the graph once per word, on exactly the words that its window shows."""
    session = onnxruntime.InferenceSession(tiny_bundle.file("language_model.onnx"))
    boundary = tiny_bundle.words.boundary
    for sentence in sentences:
        symbols = [boundary, *sentence, boundary]
        expected = []
        for place in range(len(sentence) + 1):
            half = POSITIONS // 2
            start = 0 if place < POSITIONS else (place - POSITIONS) // half * half + half
            words, targets = np.array([symbols[start : place + 1]]), np.array([symbols[start + 1 : place + 2]])
            expected.append(session.run(None, {"words": words, "targets": targets})[0][0, -1])
        np.testing.assert_allclose(model([sentence])[0], expected, atol=1e-5)


@pytest.mark.parametrize("length", range(40))
def test_windows_score_every_place_once(length: int) -> None:
    scored: list[int] = []
    for start, first, stop in _windows([0] * length, POSITIONS):
        assert 0 <= start <= first < stop <= start + POSITIONS
        scored += range(first, stop)
    assert scored == list(range(length + 1))


def test_a_graph_for_another_word_list_is_refused(tmp_path: Path, tiny_bundle: Bundle) -> None:
    (tmp_path / "language_model.onnx").write_bytes(tiny_language_model(WordList(("<unk>", "other"))))
    bundle: Any = SimpleNamespace(words=tiny_bundle.words, file=lambda name: tmp_path / name)
    with pytest.raises(BundleError, match="words_digest"):
        NeuralLanguageModel(bundle)
    (tmp_path / "language_model.onnx").write_bytes(tiny_bundle.file("joiner.onnx").read_bytes()[:50])
    with pytest.raises(BundleError, match=r"language_model\.onnx"):
        NeuralLanguageModel(bundle)
