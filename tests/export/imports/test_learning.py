"""Gradients of imported encoders, window by window through their states, beside torch in float64 over the whole
utterance; beside the hand-written graph of the packaged LSTM; and what a graph may do that has no derivative."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import factor_names, trainable
from device_sdk.bundle.streaming import StatelessPredictor, subsets_of
from device_sdk.errors import BundleError, LearningError
from device_sdk.learning.settings import StepSettings
from device_sdk.learning.step import Course, factorize, sgd
from device_sdk.runtimes.protocol import Windows, whole_windows
from device_sdk.runtimes.streaming import TAIL
from device_sdk.runtimes.training import TrainingSession
from export.bundles import rewrite
from export.imports.importer import import_sherpa
from export.networks.stateless import StatelessTransducer
from export.zipformer import export_zipformer
from server.lab.imports import Import, import_bundle
from tests.export.autodiff.exported import distance
from tests.export.graphs.oracle import path_sum
from tests.export.imports.folders import PIECES, SENTENCES, drawn_network
from tests.speech import packaged

ENCODER_SUBSETS = ("adapters", "norms", "input", "whole")
HYPOTHESES = ([3, 4, 5, 33, 9], [3, 4, 2], [], [10, 20], [7])
WEIGHTS, COSTS, SCALE = (1.0, 0.3, -0.2, 0.0, 0.5), (0.0, 1.0, 2.0, 0.5, 0.25), 0.7
SHAPES = [(frames, count) for frames in (9, 45, 77, 160, 333) for count in (1, 2, 3, 5)]


@pytest.fixture(scope="module")
def network() -> StatelessTransducer:
    """Whose weights all differ, so that each can be found again."""
    network = drawn_network()
    torch.manual_seed(1)
    with torch.no_grad():
        for value in network.parameters():
            value += 0.05 * torch.randn_like(value)
        network.encoder.mean.normal_(-8.0)
        network.encoder.scale.uniform_(0.2, 0.4)
    return network


@pytest.fixture(scope="module")
def bundle(network: StatelessTransducer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("learning")
    folder = export_zipformer(network, PIECES, root / "folder")
    (folder / "text.txt").write_text(SENTENCES, "utf-8")
    import_bundle(Import(folder, root / "bundle", (folder / "text.txt",)))
    return Bundle.open(root / "bundle")


Known = dict[tuple[int, int], dict[str, np.ndarray]]


@pytest.fixture(scope="module")
def known() -> Known:
    """What torch has given so far."""
    return {}


@cache
def _session(bundle: Bundle, subset: str) -> TrainingSession:
    return TrainingSession(bundle, subset=subset)


def _torch_gradients(network: StatelessTransducer, features: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """d(sum w NLL + c E[M]) by every parameter, in float64 over the whole utterance."""
    network = network.double()
    network.zero_grad()
    encoded = network.encode(torch.tensor(features, dtype=torch.float64)[None])[0]
    losses = []
    for tokens in HYPOTHESES[:count]:
        before = [-1, 0, *tokens]
        contexts = torch.tensor([before[at : at + 2] for at in range(len(tokens) + 1)])
        predicted = network.joiner_predictor(network.said(contexts)[:, 0])
        scores = network.joiner_output(torch.tanh(encoded[:, None] + predicted[None]))
        losses.append(-path_sum(scores.log_softmax(-1), tokens))
    nll = torch.stack(losses)
    cost = (torch.softmax(-nll, 0) * torch.tensor(COSTS[:count], dtype=torch.float64)).sum()
    (nll @ torch.tensor(WEIGHTS[:count], dtype=torch.float64) + SCALE * cost).backward()
    found = {name: each.grad.numpy().copy() for name, each in network.named_parameters() if each.grad is not None}
    network.float()
    return found


def _places(network: StatelessTransducer, bundle: Bundle) -> dict[str, tuple[str, bool]]:
    """Parameters of the bundle's encoder -> (name in torch, whether transposed), by their values."""
    values = {name: each.detach().float().numpy() for name, each in network.named_parameters()}
    found: dict[str, tuple[str, bool]] = {}
    for name, weight in bundle.weights.items():
        for other, value in values.items():
            for turned in (False, True):
                shaped = value.T if turned else value
                if name.startswith("encoder.") and shaped.shape == weight.shape and np.array_equal(shaped, weight):
                    found.setdefault(name, (other, turned))
    return found


@pytest.mark.parametrize("subset", ENCODER_SUBSETS)
@pytest.mark.parametrize(("frames", "count"), SHAPES)
def test_gradients_through_the_states_are_those_of_the_whole_utterance(
    network: StatelessTransducer, bundle: Bundle, known: Known, subset: str, frames: int, count: int
) -> None:
    generator = np.random.default_rng(frames)
    features = generator.normal(-8.0, 3.0, (frames, bundle.architecture.mel_bins)).astype(np.float32)
    # As many frames as the windows hear, the silence at the end among them; torch adds the look-ahead.
    sizes = bundle.architecture
    heard = whole_windows(Windows(sizes.window, sizes.shift, TAIL), features)[: sizes.shift - sizes.window or None]
    if (frames, count) not in known:
        known[frames, count] = _torch_gradients(network, heard, count)
    expected, places = known[frames, count], _places(network, bundle)
    parameters = dict(bundle.weights)
    names = trainable(bundle.architecture, subset)
    if subset == "adapters":
        moved = {name: value + np.float32(0.01) * generator.normal(size=value.shape).astype(np.float32)
                 for name, value in bundle.weights.items()}  # fmt: skip
        parameters |= factorize(moved, bundle.weights, names, 3, generator)
    session = _session(bundle, subset)
    given = HYPOTHESES[:count], WEIGHTS[:count], COSTS[:count], SCALE
    found = session.run(parameters, features, *given).gradients
    differences, lengths = [], []
    for name in (each for each in names if each in places):
        other, turned = places[name]
        truth = expected[other].T if turned else expected[other]
        pairs = [(found.get(name), truth)]
        if subset == "adapters":
            up, down = factor_names(name)
            pairs = [(found[up], truth @ parameters[down].T), (found[down], parameters[up].T @ truth)]
        for mine, theirs in pairs:
            differences.append(np.linalg.norm(mine - theirs))
            lengths.append(np.linalg.norm(theirs))
    assert len(lengths) >= {"input": 1}.get(subset, 20)
    assert np.linalg.norm(differences) < 1e-4 * np.linalg.norm(lengths)


def test_every_weight_that_moves_has_a_gradient(bundle: Bundle) -> None:
    for subset in subsets_of(bundle.architecture):
        expected = trainable(bundle.architecture, subset)
        if subset == "adapters":
            expected = tuple(each for name in expected for each in factor_names(name))
        assert set(TrainingSession(bundle, subset=subset).trainable) == set(expected)
    assert isinstance(bundle.architecture.predictor, StatelessPredictor)


def test_an_lstm_learns_as_by_its_hand_written_graph(imported: dict[str, Bundle]) -> None:
    """The packaged network in NeMo's layout, in windows of ten frames, beside its own training graph."""
    own, brought = packaged(), imported["nemo"]
    features = np.random.default_rng(0).normal(-8.0, 3.0, (240, own.architecture.mel_bins)).astype(np.float32)
    hypotheses = [[5, 9, 40, 3], [5, 9, 12]]
    heard = whole_windows(Windows(30, 30, TAIL), features)
    expected = TrainingSession(own).run(own.weights, heard, hypotheses, (1.0, 0.5))
    found = TrainingSession(brought, subset="whole").run(brought.weights, features, hypotheses, (1.0, 0.5))
    np.testing.assert_allclose(found.negative_log_likelihoods, expected.negative_log_likelihoods, rtol=1e-5)
    checked = 0
    for name, gradient in expected.gradients.items():
        inside = name if name.startswith(("predictor.", "joiner.predictor", "joiner.output")) else f"encoder.{name}"
        inside = inside.replace("encoder.encoder.", "encoder.")
        if inside in found.gradients:
            assert distance(found.gradients[inside], gradient) < 1e-5, name
            checked += 1
    assert checked >= 16


def _edited(folder: Path, out: Path, change) -> Path:
    out.mkdir()
    for name in ("decoder.onnx", "joiner.onnx", "tokens.txt"):
        (out / name).write_bytes((folder / name).read_bytes())
    model = onnx.load(str(folder / "encoder.onnx"))
    change(model)
    onnx.save(model, str(out / "encoder.onnx"))
    return out


def test_an_operator_without_a_rule_is_named_and_the_rest_still_learns(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    def harden(model: onnx.ModelProto) -> None:
        node = next(each for each in model.graph.node if each.op_type == "Tanh")
        node.op_type, node.name = "HardSigmoid", "the/hard/one"

    folder = _edited(folders["zipformer2"], tmp_path / "hard", harden)
    imported = import_sherpa(folder)
    assert "HardSigmoid 'the/hard/one'" in imported.not_differentiable
    assert "encoder.onnx" in imported.not_differentiable
    (folder / "text.txt").write_text(SENTENCES, "utf-8")
    summary = import_bundle(Import(folder, tmp_path / "bundle", (folder / "text.txt",)))
    assert summary["learns"] == ["output"]
    bundle = Bundle.open(tmp_path / "bundle")
    TrainingSession(bundle, subset="output")
    with pytest.raises(BundleError, match=r"HardSigmoid 'the/hard/one'.*learning.subset to 'output'"):
        TrainingSession(bundle, subset="whole")


def test_a_branch_that_what_comes_in_decides_is_named(tmp_path: Path) -> None:
    from export.autodiff import NotDifferentiable, prepare

    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["z"])], "b", [], [helper.make_tensor_value_info("z", 1, [2])]
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"])], "c", [], [helper.make_tensor_value_info("z", 1, [2])]
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["so"], to=9),
        helper.make_node("If", ["so"], ["y"], "if so", then_branch=branch, else_branch=other),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [2])], [value("y", 1, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(NotDifferentiable, match=r"If 'if so'.*branches by what comes in"):
        prepare(model, ())


def _changed(bundle: Bundle, folder: Path, file: str, change) -> Bundle:
    """The bundle with another graph, listed as it is now."""
    model = onnx.load_model_from_string(bundle.file(file).read_bytes())
    change(model)
    return Bundle.open(rewrite(bundle, folder, graphs={**_graphs(bundle), file: model.SerializeToString()}))


def _graphs(bundle: Bundle) -> dict[str, bytes]:
    return {name: bundle.file(name).read_bytes() for name in bundle.manifest.files if name.endswith(".onnx")}


def _half(output: str):
    """The first half of an output along its first axis, in its place."""

    def change(model: onnx.ModelProto) -> None:
        node = next(each for each in model.graph.node if output in each.output)
        node.output[list(node.output).index(output)] = "whole"
        model.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.array([value], np.int64), name) for name, value in (("no", 0), ("yes", 1))
        )
        model.graph.node.append(helper.make_node("Slice", ["whole", "no", "yes", "no"], [output]))
        kept = next(each for each in model.graph.output if each.name == output)
        kept.type.tensor_type.ClearField("shape")

    return change


@pytest.mark.parametrize(
    ("file", "output", "said"),
    [
        ("encoder.norms.backward.onnx", "gradient.encoder.mean", r"gives the gradient of 'encoder.mean' as \[1\]"),
        ("encoder.forward.onnx", "encoded", None),
    ],
)
def test_a_graph_that_lies_about_shapes_is_named(
    bundle: Bundle, tmp_path: Path, file: str, output: str, said: str | None
) -> None:
    def gone(model: onnx.ModelProto) -> None:
        model.graph.output[0].name = "encoding"
        for node in model.graph.node:
            node.output[:] = ["encoding" if name == output else name for name in node.output]

    damaged = _changed(bundle, tmp_path / "lies", file, gone if said is None else _half(output))
    features = np.full((90, bundle.architecture.mel_bins), -8.0, np.float32)
    with pytest.raises(BundleError, match=said or "do not give the encoder's output, states and gradients"):
        TrainingSession(damaged, subset="norms").run(dict(damaged.weights), features, [[3, 4]], [1.0])


@pytest.mark.parametrize("subset", ENCODER_SUBSETS)
def test_a_gradient_that_is_no_number_is_refused_and_the_weights_stay(bundle: Bundle, subset: str) -> None:
    parameters = dict(bundle.weights)
    name = next(each for each in parameters if each.startswith("encoder.") and parameters[each].ndim > 1)
    parameters[name] = parameters[name] + np.float32(3e38)
    if subset == "adapters":
        names = trainable(bundle.architecture, subset)
        parameters |= factorize(bundle.weights, bundle.weights, names, 2, np.random.default_rng(0))
    before = {each: value.copy() for each, value in parameters.items()}
    features = np.full((90, bundle.architecture.mel_bins), -3.0, np.float32)
    found = TrainingSession(bundle, subset=subset).run(parameters, features, [[3, 4]], [1.0])
    with pytest.raises(LearningError, match="refused"):
        loss = float(found.negative_log_likelihoods.sum())
        sgd(parameters, found.gradients, loss, Course(), StepSettings())
    assert all((parameters[each] == value).all() for each, value in before.items())


def test_an_encoder_of_bytes_alone_learns_by_the_values_that_they_stand_for(
    network: StatelessTransducer, bundle: Bundle, tmp_path: Path
) -> None:
    folder = export_zipformer(network, PIECES, tmp_path / "folder")
    quantize_dynamic(folder / "encoder.onnx", folder / "encoder.int8.onnx", weight_type=QuantType.QInt8)
    (folder / "encoder.onnx").unlink()
    (folder / "text.txt").write_text(SENTENCES, "utf-8")
    assert import_bundle(Import(folder, tmp_path / "bundle", (folder / "text.txt",)))["not_differentiable"] == ""
    near = Bundle.open(tmp_path / "bundle")
    features = np.random.default_rng(0).normal(-8.0, 3.0, (160, 80)).astype(np.float32)
    runs = [
        TrainingSession(each, subset="whole").run(dict(each.weights), features, [[3, 4, 5]], [1.0]).gradients
        for each in (bundle, near)
    ]
    shared = [name for name in runs[0] if name in runs[1] and runs[0][name].shape == runs[1][name].shape]
    exact, found = (np.concatenate([run[name].ravel() for name in shared]) for run in runs)
    assert len(shared) > 0.6 * len(runs[0])
    assert exact @ found > 0.95 * np.linalg.norm(exact) * np.linalg.norm(found)
