"""The cohort's gradient against the independent float64 reference of the devices' training graph."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
from device_sdk.bundle.architecture import Architecture
from device_sdk.learning.objectives import Objective, expected_cost, label, reinforce, total
from examples.rao_2023.rounds import gradient
from export.networks.rnnt import RNNT
from tests.export.graphs.oracle import loss_and_gradients
from tests.tiny import tiny_weights

SHAPE = Architecture(2, 9, 2, 8, 5, 7, 12, mel_bins=6)


def random_objective(generator: np.random.Generator) -> Objective:
    """A label, an expected cost, a score, or a sum of the first two, over one to four hypotheses."""
    count = int(generator.integers(1, 5))
    hypotheses = list({tuple(generator.integers(1, 12, generator.integers(0, 6)).tolist()): None for _ in range(count)})
    costs = generator.random(len(hypotheses))
    kind = int(generator.integers(4))
    if kind == 0:
        return label(hypotheses[0], float(generator.uniform(0.2, 2.0)))
    if kind == 1:
        return reinforce(hypotheses[-1], float(costs[0]), 0.5)
    spread = expected_cost(hypotheses, costs, float(generator.uniform(0.2, 3.0)))
    return spread if kind == 2 else total([spread, label(hypotheses[-1])])


@pytest.mark.parametrize("seed", range(12))
def test_a_cohort_has_the_mean_of_its_devices_gradients(seed: int) -> None:
    generator = np.random.default_rng(seed)
    parameters = tiny_weights(SHAPE, seed)
    objectives = [random_objective(generator) for _ in range(3)]
    features = [generator.normal(0, 1, (int(generator.integers(9, 40)), 6)).astype(np.float32) for _ in objectives]
    loss, found = gradient(RNNT(SHAPE).eval().from_parameters(parameters), features, objectives)

    expected_loss = 0.0
    expected = {name: np.zeros(shape) for name, shape in SHAPE.parameter_shapes().items()}
    for clip, objective in zip(features, objectives, strict=True):
        weights, costs, scale = objective.weights.tolist(), objective.costs.tolist(), objective.cost_scale
        own = loss_and_gradients(SHAPE, parameters, clip, objective.hypotheses, weights, costs, scale)
        nll, cost, gradients = own
        expected_loss += (float(nll @ objective.weights) + objective.cost_scale * cost) / len(objectives)
        for name, value in gradients.items():
            expected[name] += value / len(objectives)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-5)
    norm = np.sqrt(sum(np.square(value).sum() for value in expected.values()))
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert np.linalg.norm(found[name] - value) <= 1e-5 * (norm + 1.0), name
