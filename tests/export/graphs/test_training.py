"""The training graph against float64 autograd, finite differences and its own promises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.errors import ConfigurationError
from device_sdk.runtimes.training import TrainingSession
from export.graphs import training
from tests.tiny import tiny_weights

pytest.importorskip("torch")
from tests.export.graphs import oracle

Float = NDArray[np.float32]
TINY = PRESETS["tiny"]


@dataclass(frozen=True)
class Case:
    architecture: Architecture
    parameters: dict[str, Float]
    features: Float
    hypotheses: list[list[int]]
    weights: list[float]
    costs: list[float]
    cost_scale: float


def random_case(seed: int) -> Case:
    """Random sizes of every axis: layers, widths, frames (also not a multiple of 3), hypotheses, lengths (also 0)."""
    rng = np.random.default_rng(seed)
    size = [int(value) for value in rng.integers(3, 24, 5)]
    architecture = Architecture(
        encoder_layers=int(rng.integers(1, 4)),
        encoder_size=size[0],
        predictor_layers=int(rng.integers(1, 3)),
        predictor_size=size[1],
        embedding_size=size[2],
        joiner_size=size[3],
        pieces=size[4],
        mel_bins=int(rng.integers(2, 9)),
        subsampling_factor=int(rng.integers(1, 4)),
    )
    frames = int(rng.integers(architecture.subsampling_factor, 30 * architecture.subsampling_factor))
    count = int(rng.integers(1, 7))
    lengths = rng.integers(0, 8, count)
    return Case(
        architecture,
        tiny_weights(architecture, seed),
        rng.normal(-6.0, 3.0, (frames, architecture.mel_bins)).astype(np.float32),
        [[int(token) for token in rng.integers(1, architecture.pieces, length)] for length in lengths],
        [float(value) for value in rng.normal(0.0, 1.0, count).astype(np.float32)],
        [float(value) for value in rng.integers(0, 5, count)],
        float(rng.choice([0.0, 0.5, 2.0])),
    )


def run(case: Case) -> tuple[Float, float, dict[str, Float]]:
    session = TrainingSession(graph=training(case.architecture), architecture=case.architecture)
    found = session.run(
        case.parameters, case.features, case.hypotheses, case.weights, case.costs, cost_scale=case.cost_scale
    )
    return found.negative_log_likelihoods, found.expected_cost, dict(found.gradients)


def flat(gradients: dict[str, NDArray[np.floating]]) -> NDArray[np.float64]:
    return np.concatenate([np.asarray(value, np.float64).ravel() for value in gradients.values()])


@pytest.mark.parametrize("seed", range(20))
def test_every_gradient_agrees_with_float64(seed: int) -> None:
    case = random_case(seed)
    likelihoods, expected, gradients = run(case)
    reference = oracle.loss_and_gradients(
        case.architecture,
        case.parameters,
        case.features,
        case.hypotheses,
        case.weights,
        case.costs,
        case.cost_scale,
    )
    np.testing.assert_allclose(likelihoods, reference[0], rtol=2e-6, atol=3e-6)
    assert expected == pytest.approx(reference[1], rel=1e-4, abs=1e-6)
    assert gradients.keys() == reference[2].keys()
    error = np.linalg.norm(flat(gradients) - flat(reference[2])) / np.linalg.norm(flat(reference[2]))
    assert error <= 1e-5
