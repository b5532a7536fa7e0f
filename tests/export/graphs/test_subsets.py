"""Every subset's training graph under every objective, against float64 autograd on the same frozen layers."""

from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture, Frozen, Subset, factor_names, frozen_part, trainable
from device_sdk.bundle.streaming import subsets_of
from device_sdk.errors import BundleError
from device_sdk.learning.objectives import Objective, expected_cost, label, reinforce, total
from device_sdk.runtimes.training import FrozenLayers, TrainingSession
from export.graphs import build_graphs, frozen_layers, training
from tests.tiny import tiny_weights

pytest.importorskip("torch")
from tests.export.graphs import oracle

Float = NDArray[np.float32]
Tokens = tuple[int, ...]
NETWORKS = ("encoder", "predictor")

ARCHITECTURES = (
    Architecture(3, 12, 2, 9, 7, 8, 11, mel_bins=4),
    Architecture(2, 10, 1, 8, 5, 13, 20, mel_bins=3, subsampling_factor=2),
    Architecture(1, 6, 1, 7, 4, 5, 9, mel_bins=5, subsampling_factor=1),
)


class Recorded(FrozenLayers):
    """Keeps what the frozen layers gave last, for the reference to start from."""

    given: dict[str, Float]

    def run(self, parameters, feeds):  # type: ignore[no-untyped-def]
        self.given = super().run(parameters, feeds)
        return self.given


@pytest.mark.parametrize("subset", subsets_of(ARCHITECTURES[0]))
def test_inputs_are_in_the_canonical_order(subset: Subset) -> None:
    """Whatever order sets have in a process, so that the same architecture gives the same bytes in each."""
    architecture = ARCHITECTURES[0]
    names = list(architecture.parameter_shapes() | architecture.constant_shapes())
    factors = [each for name in trainable(architecture, "adapters") for each in factor_names(name)]
    graph = training(architecture, subset)
    assert len(graph) < len(training(architecture)) or subset in ("whole", "adapters")  # what others need is left out
    inputs = [each.name for each in onnx.load_from_string(graph).graph.input]
    for order in (names, factors):
        assert [each for each in inputs if each in order] == [each for each in order if each in inputs]
    assert set(factors) <= set(inputs) or subset != "adapters"


@cache
def session(architecture: Architecture, subset: Subset) -> tuple[TrainingSession, Recorded | None]:
    layers = frozen_part(architecture, subset)
    beneath = Recorded(frozen_layers(architecture, layers), "test", architecture, layers) if layers else None
    return TrainingSession(graph=training(architecture, subset), architecture=architecture, beneath=beneath), beneath


def objectives(hypotheses: list[Tokens], kind: str, rng: np.random.Generator) -> Objective:
    """One of each kind, and their sum."""
    chosen = hypotheses[int(rng.integers(len(hypotheses)))]
    parts = {
        "label": label(chosen, float(rng.uniform(0.1, 2.0))),
        "expected cost": expected_cost(hypotheses, rng.uniform(0, 1, len(hypotheses)), float(rng.uniform(0.1, 3.0))),
        "reinforce": reinforce(chosen, float(rng.uniform(0, 1)), float(rng.uniform(0, 1))),
    }
    return parts[kind] if kind in parts else total([parts["expected cost"], *parts.values()])


def norm(gradients: dict[str, NDArray[np.floating]]) -> float:
    return float(np.sqrt(sum(np.vdot(value, value) for value in gradients.values())))


@settings(max_examples=100, derandomize=True)
@given(
    st.sampled_from(subsets_of(ARCHITECTURES[0])),
    st.sampled_from(["label", "expected cost", "reinforce", "sum"]),
    st.sampled_from(ARCHITECTURES),
    st.integers(0, 9_999),
    st.integers(1, 12),
    st.lists(st.lists(st.integers(1, 8), max_size=4).map(tuple), min_size=1, max_size=4, unique=True),
    st.integers(1, 4),
)
def test_gradients_agree_with_float64(subset, kind, architecture, seed, frames, hypotheses, rank):
    """To 1e-5 of the sum of the terms' norms, w_i dNLL_i, c p_i E[M] dNLL_i and c p_i M_i dNLL_i: these may cancel, and
    float32 rounds each of them."""
    rng = np.random.default_rng(seed)
    loss = objectives(hypotheses, kind, rng)
    length = frames * architecture.subsampling_factor + int(rng.integers(architecture.subsampling_factor))
    features = rng.normal(-6.0, 3.0, (length, architecture.mel_bins)).astype(np.float32)
    parameters, names = tiny_weights(architecture, seed), trainable(architecture, subset)
    if subset == "adapters":
        for name in names:
            (up, down), (out, width) = factor_names(name), parameters[name].shape
            parameters[up] = rng.normal(0.0, 0.3, (out, rank)).astype(np.float32)
            parameters[down] = rng.normal(0.0, 0.3, (rank, width)).astype(np.float32)
    run, beneath = session(architecture, subset)
    found = run.run(parameters, features, loss.hypotheses, loss.weights, loss.costs, loss.cost_scale)

    given = {} if beneath is None else beneath.given
    layers, lower = frozen_part(architecture, subset).encoder_layers, [given.get(f"{side}_hidden") for side in NETWORKS]
    what = (architecture, parameters, features, loss.hypotheses, names)
    likelihoods, parts = oracle.gradient_parts(*what, layers, *lower, factors=subset == "adapters")
    posterior = np.exp(likelihoods.min() - likelihoods)
    posterior /= posterior.sum()
    expected = float(posterior @ loss.costs)
    share = loss.weights + loss.cost_scale * posterior * (expected - loss.costs)
    np.testing.assert_allclose(found.negative_log_likelihoods, likelihoods, rtol=2e-6, atol=3e-6)
    assert found.expected_cost == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert list(found.gradients) == list(parts[0])
    expected_by = {name: sum(w * part[name] for w, part in zip(share, parts, strict=True)) for name in found.gradients}
    error = {name: value - expected_by[name] for name, value in found.gradients.items()}
    terms = np.abs(loss.weights) + loss.cost_scale * posterior * (expected + loss.costs)
    assert norm(error) <= 1e-5 * sum(term * norm(part) for term, part in zip(terms, parts, strict=True))


@pytest.mark.parametrize(("subset", "layers"), [("top", Frozen(2)), ("joint", Frozen(3, True))])
def test_what_is_frozen_is_no_part_of_the_graph(subset: Subset, layers: Frozen) -> None:
    architecture = ARCHITECTURES[0]
    assert frozen_part(architecture, subset) == layers
    run, beneath = session(architecture, subset)
    assert beneath is not None and not set(layers.parameters(architecture)) & set(run._inputs)
    assert "features" not in run._inputs and set(beneath.outputs) <= set(run._inputs)
    kinds = [node.op_type for node in onnx.load_from_string(training(architecture, subset)).graph.node]
    assert subset != "joint" or (kinds.count("Scan") == 4 and "LSTM" not in kinds)  # the joint's two, the lattice's two
    assert set(run.trainable) | set(layers.parameters(architecture)) == set(architecture.parameter_shapes())


def test_frozen_layers_are_near_the_float_ones_and_each_hypothesis_stands_alone() -> None:
    architecture, subset = ARCHITECTURES[0], "joint"
    parameters = tiny_weights(architecture, 4)
    features = np.random.default_rng(0).normal(-6, 3, (30, 4)).astype(np.float32)
    run, beneath = session(architecture, subset)
    assert beneath is not None
    hypotheses = [(3, 4, 5), (7,), ()]
    together = run.run(parameters, features, hypotheses, [1.0, 1.0, 1.0]).negative_log_likelihoods
    alone = [run.run(parameters, features, [each], [1.0]).negative_log_likelihoods[0] for each in hypotheses]
    np.testing.assert_allclose(together, alone, rtol=1e-6)
    whole = session(architecture, "whole")[0].run(parameters, features, hypotheses, [1.0, 1.0, 1.0])
    np.testing.assert_allclose(together, whole.negative_log_likelihoods, rtol=0.1)
    assert np.abs(together - whole.negative_log_likelihoods).max() > 1e-5  # they are int8


def test_frozen_layers_follow_their_weights() -> None:
    """A run with other weights requantizes; one that moves only what is above does not."""
    architecture = ARCHITECTURES[0]
    run, beneath = session(architecture, "top")
    features, parameters = np.full((12, 4), -5.0, np.float32), tiny_weights(architecture, 1)

    def heard(changed: dict[str, Float]) -> Float:
        run.run({**parameters, **changed}, features, [(2,)], [1.0])
        return beneath.given["encoder_hidden"].copy()

    first, opened = heard({}), beneath._session
    above = heard({"encoder.2.W": parameters["encoder.2.W"] * np.float32(2)})
    assert beneath._session is opened
    np.testing.assert_array_equal(above, first)
    below = heard({"encoder.1.R": parameters["encoder.1.R"] * np.float32(2)})
    assert beneath._session is not opened and np.abs(below - first).max() > 1e-3
    np.testing.assert_array_equal(heard({}), first)


def test_graphs_that_do_not_belong_together_are_refused() -> None:
    architecture = ARCHITECTURES[0]
    graphs, other = build_graphs(architecture), frozen_part(architecture, "top")
    with pytest.raises(BundleError, match=r"takes \['encoder_hidden'\] from frozen layers, which give \[\]"):
        TrainingSession(graph=graphs["training.top.onnx"], architecture=architecture)
    beneath = FrozenLayers(graphs["frozen.top.int8.onnx"], "frozen", architecture, other)
    message = r"takes \['encoder_hidden', 'predictor_hidden'\] from frozen layers, which give \['encoder_hidden'\]"
    with pytest.raises(BundleError, match=message):
        TrainingSession(graph=graphs["training.joint.onnx"], architecture=architecture, beneath=beneath)
    with pytest.raises(BundleError, match="frozen: has inputs"):
        FrozenLayers(graphs["training.top.onnx"], "frozen", architecture, other)
