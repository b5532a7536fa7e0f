"""Every benchmark of this folder, small: finite figures, not times; what they count and compare is what they say."""

import math
import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from device_sdk.benchmarks import Figure
from device_sdk.bundle import PRESETS, Bundle
from device_sdk.runtimes.language_model import NeuralLanguageModel
from export.graphs.language_model import language_model_graph
from export.networks.language_model import LanguageModel
from export.networks.language_model_shape import LanguageModelShape
from rescoring.words import WordList
from server.lab.benchmarks import aggregate, decode, rescore, rnnt_loss, train
from server.lab.corpora import open_corpus
from server.lab.corpora.roles import ROLES

SMALL: dict[str, dict[str, Any]] = {
    "aggregate": {"VALUES": 40_000},
    "rescore": {"RUNS": 2, "COUNTS": 200},
    "rnnt_loss": {"ON_CPU": {"utterances": 2, "frames": 20, "tokens": 4, "pieces": 16, "joiner": 8}, "TURNS": 3},
    "train": {"ON_CPU": {"preset": "tiny", "utterances": 2, "frames": 60, "tokens": 4, "steps": 2}},
}


@pytest.mark.parametrize("name", SMALL)
def test_every_figure_is_measured(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = import_module(f"server.lab.benchmarks.{name}")
    for constant, value in SMALL[name].items():
        monkeypatch.setattr(module, constant, value)
    if hasattr(module, "run_child"):  # the sizes hold in this process only
        monkeypatch.setattr(module, "run_child", lambda _, call, *environment: getattr(module, call)())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_PEERS", raising=False)
    threads = torch.get_num_threads()
    try:
        figures: list[Figure] = module.benchmark()
    finally:
        torch.set_num_threads(threads)
    assert figures and len({(figure.metric, figure.peer) for figure in figures}) == len(figures)
    values = [value for figure in figures for value in (figure.ours, figure.peer_value) if value is not None]
    assert all(math.isfinite(value) for value in values)
    assert list(tmp_path.iterdir()) == [], "it cleans up"


def test_sums_of_updates_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "VALUES", 40_000)
    assert 0 < aggregate.measure()["error"] < aggregate.ERROR


@pytest.mark.slow
def test_the_loss_is_as_fast_as_it_should_be() -> None:
    for figure in rnnt_loss.benchmark():
        assert figure.holds, figure


def test_word_errors_are_compared(tiny_bundle: Bundle) -> None:
    figures = decode.word_errors(tiny_bundle, open_corpus("made:heldout", ROLES).first(2))
    beam, pruned, *others, files, quick_files = figures
    assert (files.peer_value, quick_files.peer_value) == (beam.ours, others[0].ours)
    assert beam.peer == "unpruned" and beam.peer_value is not None
    assert pruned.ours == pytest.approx(beam.ours - beam.peer_value) and pruned.target == decode.PRUNED
    for rates, added in zip(others[::2], others[1::2], strict=True):
        assert rates.peer == "float32" and rates.peer_value is not None
        assert added.ours == pytest.approx(rates.ours - rates.peer_value) and added.target == decode.INT8
        assert added.holds is (added.ours <= decode.INT8)


def test_without_recordings_there_is_no_word_error(tiny_bundle: Bundle, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("IDIOLECT_DATA", raising=False)
    assert decode.unseen_speech(tiny_bundle) is None
    monkeypatch.setenv("IDIOLECT_DATA", str(tmp_path))
    assert decode.unseen_speech(tiny_bundle) is None


@pytest.mark.data
@pytest.mark.skipif("IDIOLECT_DATA" not in os.environ, reason="IDIOLECT_DATA names no folder of recordings")
def test_speakers_that_training_heard_are_left_out() -> None:
    bundle = Bundle.open()
    corpus = decode.unseen_speech(bundle)
    voices = bundle.manifest.training["voices"]["barista"]
    assert {utterance.speaker for utterance in corpus.utterances} == {*voices["devices"], *voices["heldout"]}


def test_the_list_is_one_that_a_beam_could_give() -> None:
    bundle = Bundle.open()
    texts = [hypothesis.text for hypothesis in rescore.nbest(bundle.words)]
    assert len(set(texts)) == rescore.ENTRIES and {len(text.split()) for text in texts} == {rescore.LENGTH}
    assert [sum(word == 0 for word in bundle.words.ids(text)) for text in texts] == [0] * 18 + [1] * 2


def test_the_peer_in_torch_is_the_same_model() -> None:
    bundle = Bundle.open()
    sentences = [bundle.words.ids(hypothesis.text) for hypothesis in rescore.nbest(bundle.words)]
    score = rescore._in_torch(bundle, sentences)
    np.testing.assert_allclose(score(), np.array(NeuralLanguageModel(bundle)(sentences)), atol=1e-4)


def test_a_model_as_it_is_trained_now_is_the_same_in_torch(tmp_path: Path) -> None:
    words, shape = WordList(("<unk>", *"abcdefgh")), LanguageModelShape(9, 8, 16, 1, 2, 8, frequent=5)
    parameters = {name: value.numpy() for name, value in LanguageModel(shape).state_dict().items()}
    (tmp_path / "language_model.onnx").write_bytes(language_model_graph(parameters, shape, words.digest))
    bundle: Any = SimpleNamespace(file=tmp_path.joinpath, words=words)
    sentences = [[0, 3, 8], [4, 5, 6]]
    found = rescore._in_torch(bundle, sentences)
    np.testing.assert_allclose(found(), np.array(NeuralLanguageModel(bundle)(sentences)), atol=1e-5)


def test_on_a_gpu_the_share_of_its_peak_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {**train.ON_GPU, "device": "A card", "speed": 1.0, "products": 2e14, "peak": 4e14, "peer": "data sheet"}
    monkeypatch.setattr(train, "run_child", lambda *_: answer)
    speed, share = train.benchmark()
    assert "A card" in speed.metric and share.ratio == 0.5


def test_products_are_those_of_the_layers() -> None:
    """Counted by torch for the linear layers, and by hand for the LSTMs, which it does not know."""
    a = PRESETS["tiny"]
    size, frames, tokens = 2, 60, 4
    stacked, positions = frames // 3, tokens + 1
    layers = [
        (torch.nn.Linear(a.encoder_size, a.joiner_size), size * stacked, 2),  # the joint's and the CTC head's
        (torch.nn.Linear(a.joiner_size, a.pieces), size * stacked, 1),
        (torch.nn.Linear(a.predictor_size, a.joiner_size), size * positions, 1),
    ]
    expected = 0
    for linear, rows, times in layers:
        with FlopCounterMode(display=False) as counter:
            linear(torch.zeros(rows, linear.in_features, requires_grad=True)).sum().backward()
        expected += times * counter.get_total_flops()
    expected += 2 * size * stacked * positions * a.joiner_size * a.pieces
    for rows, lstm in (
        (size * stacked, torch.nn.LSTM(a.mel_bins * 3, a.encoder_size, a.encoder_layers)),
        (size * positions, torch.nn.LSTM(a.embedding_size, a.predictor_size, a.predictor_layers)),
    ):
        expected += 3 * 2 * rows * sum(value.numel() for name, value in lstm.named_parameters() if "weight" in name)
    assert train.products(a, size, frames, tokens) == expected
