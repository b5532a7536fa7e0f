import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.decoding.forward import log_likelihoods
from device_sdk.learning.settings import TeacherSettings
from device_sdk.learning.teacher import follow
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.training import TrainingSession


def test_the_teacher_is_an_average_at_its_interval() -> None:
    teacher, student = {"p": np.zeros(1, np.float32)}, {"p": np.ones(1, np.float32)}
    settings = TeacherSettings(decay=0.9, interval=2)
    assert follow(teacher, student, 1, settings) is teacher
    np.testing.assert_allclose(follow(teacher, student, 2, settings)["p"], [0.1], rtol=1e-6)
    for step in range(200):
        teacher = follow(teacher, student, step, settings)
    np.testing.assert_allclose(teacher["p"], [1.0], atol=1e-4)


@pytest.mark.parametrize("frames", [3, 30, 90])
def test_scores_are_those_of_the_training_graph(tiny_bundle: Bundle, frames: int) -> None:
    """Two independent ways to the same number: columns of a prefix tree, and the graph's lattice."""
    generator, pieces = np.random.default_rng(frames), tiny_bundle.architecture.pieces
    features = generator.normal(-6.0, 3.0, (frames, 64)).astype(np.float32)
    common = generator.integers(1, pieces, 4).tolist()
    hypotheses = [[], common, common[:2], [*common, 5], [*common[:3], 7, 9], generator.integers(1, pieces, 9).tolist()]
    transducer = OnnxTransducer(tiny_bundle)
    found = log_likelihoods(transducer, transducer.encode(features)[0], [*hypotheses, common])
    expected = TrainingSession(tiny_bundle).run(tiny_bundle.weights, features, hypotheses, np.zeros(6))
    np.testing.assert_allclose(-found[:6], expected.negative_log_likelihoods, rtol=1e-4, atol=1e-3)
    assert found[6] == found[1]


def test_probabilities_of_all_short_sequences_sum_to_less_than_one(tiny_bundle: Bundle) -> None:
    transducer = OnnxTransducer(tiny_bundle)
    encoded, _ = transducer.encode(np.full((3, 64), -6.0, np.float32))
    every = [(), *((piece,) for piece in range(1, tiny_bundle.architecture.pieces))]
    assert 0.0 < np.exp(log_likelihoods(transducer, encoded, every)).sum() <= 1.0 + 1e-6
