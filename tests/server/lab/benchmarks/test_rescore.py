"""The benchmark of the second pass runs and compares like with like; its times are not asserted on a shared machine."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.runtimes.language_model import NeuralLanguageModel
from server.lab.benchmarks import rescore


def test_every_figure_is_measured_beside_its_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescore, "RUNS", 2)
    monkeypatch.setattr(rescore, "COUNTS", 200)
    figures = {figure.metric: figure for figure in rescore.benchmark()}
    assert {figure.target for figure in figures.values()} == {None, rescore.SHARE, rescore.WHOLE, rescore.RELEASE}
    assert figures["what adapting adds"].target == rescore.SHARE
    whole = next(figure for name, figure in figures.items() if name.startswith("second pass, 20-best of 12 words"))
    assert whole.ours > figures["neural language model"].ours * 0.5 > 0
    assert {f"what adapting adds with {name}" for name in rescore.BEYOND} <= figures.keys()
    assert all(figure.lower_is_better for figure in figures.values() if figure.target is not None)
    assert figures["noising 200 counts"].peer == "numpy's float noise"


def test_the_list_is_one_that_a_beam_could_give() -> None:
    bundle = Bundle.open()
    texts = [hypothesis.text for hypothesis in rescore.nbest(bundle.words)]
    assert len(set(texts)) == rescore.ENTRIES
    assert {len(text.split()) for text in texts} == {rescore.LENGTH}
    unlisted = [sum(word == 0 for word in bundle.words.ids(text)) for text in texts]
    assert unlisted == [0] * 18 + [1] * 2


def test_the_peer_in_torch_is_the_same_model() -> None:
    pytest.importorskip("torch")
    bundle = Bundle.open()
    sentences = [bundle.words.ids(hypothesis.text) for hypothesis in rescore.nbest(bundle.words)]
    of = rescore._in_torch(bundle)
    assert of is not None
    np.testing.assert_allclose(of(sentences)(), np.array(NeuralLanguageModel(bundle)(sentences)), atol=1e-4)
