"""A path's score is a part of what the training graph calls the log-likelihood of its tokens, and all of it where the
beam kept every alignment."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.decoding import DecodingSettings
from device_sdk.decoding.beam import advance, paths, start
from device_sdk.features import logmel
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.training import TrainingSession
from tests.signals import noise


def search(bundle, features, settings):
    transducer = OnnxTransducer(bundle)
    encoded, _ = transducer.encode(features)
    return paths(advance(start(transducer), encoded, transducer, settings))


def log_likelihoods(bundle, features, found):
    tokens = [list(path.tokens) for path in found]
    session = TrainingSession(bundle)
    return -session.run(bundle.weights, features, tokens, np.ones(len(tokens))).negative_log_likelihoods


@pytest.mark.parametrize("seed", range(3))
def test_no_score_is_above_the_likelihood(tiny_bundle, seed):
    features = logmel(noise(9_600, seed))
    found = search(tiny_bundle, features, DecodingSettings(beam=16, nbest=8))
    scores = np.array([path.score for path in found])
    assert (scores <= log_likelihoods(tiny_bundle, features, found) + 1e-3).all()


def test_a_wide_beam_finds_the_likelihood(tiny_bundle):
    features = logmel(noise(960))  # two stacked frames: of up to two tokens no alignment is lost
    settings = DecodingSettings(beam=3_000, symbols_per_frame=2, threshold=100.0)
    found = [path for path in search(tiny_bundle, features, settings) if len(path.tokens) <= 2][:30]
    scores = np.array([path.score for path in found])
    np.testing.assert_allclose(scores, log_likelihoods(tiny_bundle, features, found), atol=1e-3)
