"""The benchmark of the second pass compares like with like."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.runtimes.language_model import NeuralLanguageModel
from server.lab.benchmarks import rescore


def test_the_list_is_one_that_a_beam_could_give() -> None:
    bundle = Bundle.open()
    texts = [hypothesis.text for hypothesis in rescore.nbest(bundle.words)]
    assert len(set(texts)) == rescore.ENTRIES
    assert {len(text.split()) for text in texts} == {rescore.LENGTH}
    assert [sum(word == 0 for word in bundle.words.ids(text)) for text in texts] == [0] * 18 + [1] * 2


def test_the_peer_in_torch_is_the_same_model() -> None:
    pytest.importorskip("torch")
    bundle = Bundle.open()
    sentences = [bundle.words.ids(hypothesis.text) for hypothesis in rescore.nbest(bundle.words)]
    score = rescore._in_torch(bundle, sentences)
    assert score is not None
    np.testing.assert_allclose(score(), np.array(NeuralLanguageModel(bundle)(sentences)), atol=1e-4)
