"""The cohort's gradient against the reference of the devices' training graph, its batched search against their own."""

import numpy as np
import pytest
import torch

from device_sdk.bundle.architecture import Architecture
from device_sdk.decoding.beam import advance, paths, start
from device_sdk.decoding.settings import DecodingSettings
from device_sdk.learning.objectives import Objective, expected_cost, label, reinforce, total
from device_sdk.runtimes.protocol import States
from examples.rao_2023.lists import nbest
from examples.rao_2023.rounds import gradient
from export.networks.rnnt import RNNT
from tests.export.graphs.oracle import loss_and_gradients
from tests.tiny import tiny_weights

SHAPE = Architecture(2, 9, 2, 8, 5, 7, 12, mel_bins=6)


def random_objective(generator: np.random.Generator) -> Objective:
    """A label, an expected cost, a score, or a sum of the first two, over one to four hypotheses."""
    count = int(generator.integers(1, 5))
    hypotheses = list({tuple(generator.integers(1, 12, generator.integers(0, 6)).tolist()): None for _ in range(count)})
    costs, kind = generator.random(len(hypotheses)), int(generator.integers(4))
    if kind == 0:
        return label(hypotheses[0], float(generator.uniform(0.2, 2.0)))
    if kind == 1:
        return reinforce(hypotheses[-1], float(costs[0]), 0.5)
    spread = expected_cost(hypotheses, costs, float(generator.uniform(0.2, 3.0)))
    return spread if kind == 2 else total([spread, label(hypotheses[-1])])


@pytest.mark.parametrize("seed", range(12))
def test_a_cohort_has_the_mean_of_its_devices_gradients(seed: int) -> None:
    generator, parameters = np.random.default_rng(seed), tiny_weights(SHAPE, seed)
    objectives = [random_objective(generator) for _ in range(3)]
    features = [generator.normal(0, 1, (int(generator.integers(9, 40)), 6)).astype(np.float32) for _ in objectives]
    loss, found = gradient(RNNT(SHAPE).eval().from_parameters(parameters), features, objectives)

    expected_loss = 0.0
    expected = {name: np.zeros(shape) for name, shape in SHAPE.parameter_shapes().items()}
    for clip, objective in zip(features, objectives, strict=True):
        weights, costs, scale = objective.weights.tolist(), objective.costs.tolist(), objective.cost_scale
        nll, cost, gradients = loss_and_gradients(SHAPE, parameters, clip, objective.hypotheses, weights, costs, scale)
        expected_loss += (float(nll @ objective.weights) + objective.cost_scale * cost) / len(objectives)
        for name, value in gradients.items():
            expected[name] += value / len(objectives)
    assert loss == pytest.approx(expected_loss, rel=1e-5, abs=1e-5)
    norm = np.sqrt(sum(np.square(value).sum() for value in expected.values()))
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert np.linalg.norm(found[name] - value) <= 1e-5 * (norm + 1.0), name


SHORT = Architecture(1, 8, 1, 8, 6, 7, 5, mel_bins=4)


class OneStep:
    """The torch network as the devices' search wants it."""

    def __init__(self, network: RNNT) -> None:
        self.network = network

    @torch.no_grad()
    def predict(self, tokens: np.ndarray, state: States | None) -> tuple[np.ndarray, States]:
        held = None if state is None else (torch.from_numpy(state[0]), torch.from_numpy(state[1]))
        output, (h, c) = self.network.predictor(self.network.embedding(torch.from_numpy(tokens)[:, None]), held)
        return self.network.joiner_predictor(output)[:, 0].numpy(), (h.numpy(), c.numpy())

    @torch.no_grad()
    def join(self, encoded: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        return self.network.join(torch.from_numpy(encoded), torch.from_numpy(predicted)).numpy()


@pytest.mark.parametrize(("seed", "most"), [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2), (5, 2)])
def test_all_hypotheses_of_short_speech_are_found_with_exact_scores(seed: int, most: int) -> None:
    """With a beam wider than there are token sequences, nothing is dropped and both searches sum all alignments."""
    generator = np.random.default_rng(seed)
    network = RNNT(SHORT).eval().from_parameters(tiny_weights(SHORT, seed))
    features = [generator.normal(0, 1, (3 * frames, 4)).astype(np.float32) for frames in (1, 4 - most, 1)]
    beam = {1: 128, 2: 350}[most]
    found = nbest(network, features, beam, threshold=1e9, most_per_frame=most)
    settings = DecodingSettings(beam=beam, nbest=beam, symbols_per_frame=most, threshold=1e9)
    for clip, entries in zip(features, found, strict=True):
        with torch.no_grad():
            encoded = network.encode(torch.from_numpy(clip)[None])[0].numpy()
        joint = OneStep(network)
        expected = {path.tokens: path.score for path in paths(advance(start(joint), encoded, joint, settings))}
        assert {tokens for tokens, _ in entries} == set(expected)
        for tokens, score in entries:
            assert score == pytest.approx(expected[tokens], abs=1e-4)
        assert [score for _, score in entries] == sorted((score for _, score in entries), reverse=True)


def test_a_list_does_not_depend_on_its_companions() -> None:
    generator = np.random.default_rng(3)
    network = RNNT(SHORT).eval().from_parameters(tiny_weights(SHORT, 3))
    features = [generator.normal(0, 1, (frames, 4)).astype(np.float32) for frames in (30, 12, 21)]
    for clip, entries in zip(features, nbest(network, features, beam=4), strict=True):
        (alone,) = nbest(network, [clip], beam=4)
        assert [tokens for tokens, _ in alone] == [tokens for tokens, _ in entries]
        np.testing.assert_allclose([s for _, s in alone], [s for _, s in entries], atol=1e-4)
        assert len(entries) <= 4 and len({tokens for tokens, _ in entries}) == len(entries)
