from __future__ import annotations

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.learning.teacher import log_likelihoods
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.training import TrainingSession


@pytest.mark.parametrize("frames", [3, 30, 90])
def test_scores_are_those_of_the_training_graph(tiny_bundle: Bundle, frames: int) -> None:
    """Two independent ways to the same number: columns of a prefix tree, and the graph's lattice."""
    generator = np.random.default_rng(frames)
    features = generator.normal(-6.0, 3.0, (frames, 64)).astype(np.float32)
    pieces = tiny_bundle.architecture.pieces
    common = generator.integers(1, pieces, 4).tolist()
    hypotheses = [[], common, common[:2], [*common, 5], [*common[:3], 7, 9], generator.integers(1, pieces, 9).tolist()]
    transducer = OnnxTransducer(tiny_bundle)
    encoded, _ = transducer.encode(features)
    found = log_likelihoods(transducer, encoded, [*hypotheses, common])
    expected = TrainingSession(tiny_bundle).run(tiny_bundle.weights, features, hypotheses, np.zeros(6))
    np.testing.assert_allclose(-found[:6], expected.negative_log_likelihoods, rtol=1e-4, atol=1e-3)
    assert found[6] == found[1]


def test_probabilities_of_all_short_sequences_sum_to_less_than_one(tiny_bundle: Bundle) -> None:
    transducer = OnnxTransducer(tiny_bundle)
    encoded, _ = transducer.encode(np.full((3, 64), -6.0, np.float32))
    pieces = range(1, tiny_bundle.architecture.pieces)
    total = np.exp(log_likelihoods(transducer, encoded, [(), *((a,) for a in pieces)])).sum()
    assert 0.0 < total <= 1.0 + 1e-6
