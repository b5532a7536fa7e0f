"""The training graph against float64 autograd, finite differences and its own promises."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle.architecture import PRESETS, Architecture
from device_sdk.errors import ConfigurationError
from device_sdk.runtimes.training import TrainingSession
from export.graphs import build_graphs, training
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


def relative_error(found: dict[str, NDArray[np.floating]], expected: dict[str, NDArray[np.floating]]) -> float:
    """Relative L2 distance over all parameters together."""
    return float(np.linalg.norm(flat(found) - flat(expected)) / np.linalg.norm(flat(expected)))


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
    assert relative_error(gradients, reference[2]) <= 1e-5


def test_padding_changes_nothing() -> None:
    """Hypotheses of different lengths in one run give what each gives alone, to the last bits of float32."""
    case = random_case(2)
    together = run(replace(case, cost_scale=0.0))
    alone = [
        run(replace(case, hypotheses=[tokens], weights=[weight], costs=[0.0], cost_scale=0.0))
        for tokens, weight in zip(case.hypotheses, case.weights, strict=True)
    ]
    np.testing.assert_allclose(together[0], [nll[0] for nll, _, _ in alone], rtol=1e-6, atol=1e-6)
    total = {name: sum(gradients[name] for _, _, gradients in alone) for name in together[2]}
    assert relative_error(together[2], total) <= 3e-6


SHARED = [
    [[5, 9, 4], [5, 9], [5, 9, 4], [5, 8, 4], [], [5]],
    [[7], [7]],
    [[1, 1, 1], [1, 1], [1]],
    [[2, 3], [3, 2]],
]


@pytest.mark.parametrize("hypotheses", SHARED)
def test_shared_prefixes_agree_with_float64(hypotheses: list[list[int]]) -> None:
    """Prefixes that several hypotheses share are joined once; each still gets its own likelihood and weight."""
    rng = np.random.default_rng(len(hypotheses))
    count = len(hypotheses)
    features = rng.normal(-6.0, 3.0, (33, 64)).astype(np.float32)
    weights = [float(value) for value in rng.normal(size=count).astype(np.float32)]
    costs = [float(value) for value in range(count)]
    case = Case(TINY, tiny_weights(TINY, 3), features, hypotheses, weights, costs, 0.5)
    likelihoods, _, gradients = run(case)
    reference = oracle.loss_and_gradients(TINY, case.parameters, features, hypotheses, weights, costs, 0.5)
    np.testing.assert_allclose(likelihoods, reference[0], rtol=2e-6, atol=3e-6)
    assert relative_error(gradients, reference[2]) <= 1e-5


def sharp_case() -> Case:
    """Alignments that keep to a path, as a trained model's do: most cells carry nothing."""
    rng = np.random.default_rng(5)
    parameters = tiny_weights(TINY, 5)
    for name in ("joiner.encoder.weight", "joiner.predictor.weight", "joiner.output.weight"):
        parameters[name] = parameters[name] * np.float32(2.0)
    features = rng.normal(-6.0, 3.0, (150, 64)).astype(np.float32)
    hypotheses = [[5, 9, 4, 2, 2, 7], [5, 9, 4, 2], [5, 8, 4, 2, 2, 7], [3, 1], []]
    return Case(TINY, parameters, features, hypotheses, [1.0, -0.5, 0.25, 0.0, 1.0], [0.0, 1.0, 2.0, 1.0, 5.0], 0.5)


@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_cells_that_carry_nothing_change_nothing(scale: float) -> None:
    """However large the loss is: what is left out is measured by the cell that carries most."""
    case = sharp_case()
    weights, cost_scale = [scale * weight for weight in case.weights], scale * case.cost_scale
    gradients = run(replace(case, weights=weights, cost_scale=cost_scale))[2]
    reference = oracle.loss_and_gradients(
        TINY, case.parameters, case.features, case.hypotheses, weights, case.costs, cost_scale
    )[2]
    assert relative_error(gradients, reference) <= 1e-5


def test_nothing_to_learn_is_a_gradient_of_zeros_and_what_is_no_number_stays_none() -> None:
    case = sharp_case()
    gradients = run(replace(case, weights=[0.0] * 5, cost_scale=0.0))[2]
    assert not any(value.any() for value in gradients.values())
    broken = dict(case.parameters)
    broken["joiner.output.bias"] = np.full_like(broken["joiner.output.bias"], np.nan)
    assert np.isnan(run(replace(case, parameters=broken))[2]["joiner.output.weight"]).any()


def test_left_over_frames_are_dropped() -> None:
    case = random_case(11)
    factor = case.architecture.subsampling_factor
    assert factor > 1
    whole = case.features[: len(case.features) // factor * factor]
    longer = np.concatenate([whole, np.full((factor - 1, whole.shape[1]), 50.0, np.float32)])
    first, second = run(replace(case, features=whole)), run(replace(case, features=longer))
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(flat(first[2]), flat(second[2]))


@pytest.fixture(scope="module")
def nbest() -> Case:
    """An n-best list whose posterior is spread, so that the expected cost has something to move."""
    rng = np.random.default_rng(5)
    features = rng.normal(-6.0, 3.0, (45, 64)).astype(np.float32)
    hypotheses = [[5, 9, 4], [5, 9], [5, 8, 4], []]
    weights = {name: value * np.float32(0.5) for name, value in tiny_weights(TINY, 5).items()}
    return Case(TINY, weights, features, hypotheses, [0.0] * 4, [0.0, 1.0, 2.0, 3.0], 1.0)


def test_expected_cost_is_that_of_the_posterior(nbest: Case) -> None:
    likelihoods, expected, _ = run(nbest)
    posterior = np.exp(-likelihoods.astype(np.float64))
    posterior /= posterior.sum()
    assert expected == pytest.approx(posterior @ nbest.costs, rel=1e-5)
    assert posterior.max() < 0.999


@pytest.mark.parametrize("seed", range(6))
def test_expected_cost_by_finite_differences_of_itself(nbest: Case, seed: int) -> None:
    """Eq. 1 of Rao et al. 2023: the slope of E[M] along a random direction, from values of E[M] alone; a sign must
    show."""
    rng = np.random.default_rng(seed)
    _, _, gradients = run(nbest)
    direction = {name: rng.normal(size=value.shape) for name, value in gradients.items()}
    length = np.linalg.norm(flat(direction))
    slope = sum(float((gradients[name] * value).sum()) for name, value in direction.items()) / length

    def expected(step: float) -> float:
        moved = {name: nbest.parameters[name] + step / length * value for name, value in direction.items()}
        _, cost, _ = oracle.loss_and_gradients(
            TINY, {**nbest.parameters, **moved}, nbest.features, nbest.hypotheses, [0.0] * 4, nbest.costs, 1.0
        )
        return cost

    step = 1e-4
    assert slope == pytest.approx((expected(step) - expected(-step)) / (2 * step), rel=1e-3, abs=1e-7)


def test_a_step_on_the_expected_cost_lowers_it(nbest: Case) -> None:
    likelihoods, before, gradients = run(nbest)
    scale = np.float32(0.05 / np.linalg.norm(flat(gradients)))
    moved = nbest.parameters | {name: nbest.parameters[name] - scale * value for name, value in gradients.items()}
    after_likelihoods, after, _ = run(replace(nbest, parameters=moved))
    assert after < before
    # The cheapest hypothesis gained probability over the dearest one.
    gain = (likelihoods[3] - likelihoods[0]) - (after_likelihoods[3] - after_likelihoods[0])
    assert gain < 0


def test_a_step_on_a_label_raises_its_likelihood(nbest: Case) -> None:
    case = replace(nbest, weights=[1.0, 0.0, 0.0, 0.0], cost_scale=0.0)
    before, _, gradients = run(case)
    scale = np.float32(0.05 / np.linalg.norm(flat(gradients)))
    moved = case.parameters | {name: case.parameters[name] - scale * value for name, value in gradients.items()}
    assert run(replace(case, parameters=moved))[0][0] < before[0]


def test_zero_weights_give_zero_gradients(nbest: Case) -> None:
    _, _, gradients = run(replace(nbest, cost_scale=0.0))
    assert not flat(gradients).any()


SUBSETS = [
    ["joiner.output.bias"],
    ["predictor.embedding", "joiner.encoder.weight"],
    ["encoder.1.R", "predictor.0.B"],
    ["encoder.0.W"],
    ["predictor.1.W", "joiner.predictor.weight", "joiner.output.weight"],
]


@pytest.mark.parametrize("names", SUBSETS)
def test_a_subset_gives_the_same_gradients_with_fewer_nodes(names: list[str]) -> None:
    architecture = Architecture(2, 12, 2, 10, 8, 9, 20, mel_bins=4)
    rng = np.random.default_rng(1)
    parameters, features = tiny_weights(architecture), rng.normal(-6, 3, (30, 4)).astype(np.float32)
    whole, part = training(architecture), training(architecture, names)
    assert len(part) < len(whole)
    found = []
    for graph in (whole, part):
        session = TrainingSession(graph=graph, architecture=architecture)
        found.append(session.run(parameters, features, [[3, 4], [5]], [1.0, -0.5], [1.0, 2.0], 0.7))
    assert set(session.trainable) == set(names)
    for name in names:
        np.testing.assert_allclose(found[1].gradients[name], found[0].gradients[name], rtol=1e-5, atol=1e-6)
    # Layers that are walked back are unrolled, the others run as one operator: sums are taken in another order.
    likelihoods = [each.negative_log_likelihoods for each in found]
    np.testing.assert_allclose(likelihoods[1], likelihoods[0], rtol=1e-6)


@pytest.mark.parametrize(("names", "message"), [(["encoder.9.W"], "unknown parameter 'encoder.9.W'"), ([], "found no")])
def test_a_wrong_subset_is_refused(names: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        training(TINY, names)


def test_a_long_utterance_keeps_its_precision() -> None:
    """T = 200: the lattice in float64 keeps what float32 sums would lose."""
    rng = np.random.default_rng(8)
    case = Case(
        TINY,
        tiny_weights(TINY, 8),
        rng.normal(-6.0, 3.0, (600, 64)).astype(np.float32),
        [[int(token) for token in rng.integers(1, 64, 12)]],
        [1.0],
        [0.0],
        0.0,
    )
    likelihoods, _, gradients = run(case)
    reference = oracle.loss_and_gradients(TINY, case.parameters, case.features, case.hypotheses, [1.0], [0.0], 0.0)
    np.testing.assert_allclose(likelihoods, reference[0], rtol=1e-6)
    assert relative_error(gradients, reference[2]) <= 1e-5


def test_the_same_graph_has_the_same_bytes() -> None:
    assert build_graphs(TINY) == build_graphs(TINY)
