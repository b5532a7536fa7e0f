"""ExecuTorch's programs of an imported bundle beside onnxruntime on the same graphs."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import BundleError
from device_sdk.runtimes.engine import Engine
from device_sdk.runtimes.executorch import MANIFEST, open_programs
from device_sdk.runtimes.streaming import open_transducer
from export.executorch import export_executorch
from export.executorch.encoder import EncoderGraph
from export.executorch.steps import BATCH
from server.lab.imports import Import, import_bundle
from tests.export.imports.folders import zipformer_folder
from tests.speech import clips

pytestmark = pytest.mark.skipif(find_spec("executorch") is None, reason="ExecuTorch is not installed")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    """A drawn Zipformer."""
    root = tmp_path_factory.mktemp("imported")
    folder = zipformer_folder(root / "folder")
    import_bundle(Import(folder, root / "bundle", (folder / "text.txt",)))
    return Bundle.open(root / "bundle")


@pytest.fixture(scope="module")
def programs(bundle: Bundle, tmp_path_factory) -> Path:
    return export_executorch(bundle, tmp_path_factory.mktemp("executorch") / "new")


def compare(found, expected) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_every_chunk_is_onnxruntimes(bundle: Bundle, programs: Path) -> None:
    ours, peer, sizes = open_programs(programs, bundle), open_transducer(bundle), bundle.architecture
    rng = np.random.default_rng(0)
    state = theirs = None
    for chunks in (1, 1, 1, 3, 1):
        frames = sizes.window + (chunks - 1) * sizes.shift
        features = rng.normal(-8.0, 2.0, (frames, sizes.mel_bins)).astype(np.float32)
        encoded, state = ours.encode(features, state)
        expected, theirs = peer.encode(features, theirs)
        compare((encoded, *state), (expected, *theirs))
    assert int(state[-1][0]) == 7 * sizes.shift // 2  # of 20 ms
    inputs = json.loads((programs / MANIFEST).read_text("utf-8"))["programs"]["encoder.pte"]["inputs"]
    assert list(inputs) == ["features", *(each.name for each in sizes.states)]


@pytest.mark.parametrize("rows", [1, 2, BATCH + 1])
def test_predictor_and_joiner_are_onnxruntimes_for_any_batch(bundle: Bundle, programs: Path, rows: int) -> None:
    ours, peer = open_programs(programs, bundle), open_transducer(bundle)
    tokens = np.random.default_rng(rows).integers(0, bundle.architecture.pieces, (3, rows))
    state = theirs = None
    for each in tokens:
        predicted, state = ours.predict(each, state)
        expected, theirs = peer.predict(each, theirs)
        compare((predicted, *state), (expected, *theirs))
    encoded = peer.encode(np.full((bundle.architecture.window, 80), -8.0, np.float32))[0]
    compare([ours.join(encoded[None], predicted[:, None])], [peer.join(encoded[None], predicted[:, None])])


def test_a_device_hears_the_same(bundle: Bundle, programs: Path) -> None:
    settings = DecodingSettings(beam=4, nbest=4)
    ours = Recognizer(bundle, settings, transducer=Engine("executorch", programs).transducer(bundle))
    peer = Recognizer(bundle, settings)
    for clip in clips()[:3]:
        found, expected = (each.recognize(clip, 16_000).nbest[0] for each in (ours, peer))
        assert found.tokens == expected.tokens and found.tokens
        assert found.score == pytest.approx(expected.score, abs=1e-2)


def test_what_a_device_learns_takes_its_place(bundle: Bundle, programs: Path) -> None:
    rng = np.random.default_rng(1)
    noise = {name: rng.normal(0.0, 0.1, value.shape).astype(np.float32) for name, value in bundle.weights.items()}
    frozen = {name for name, _ in bundle.architecture.encoder}
    moved = {name: value if name in frozen else value + noise[name] for name, value in bundle.weights.items()}
    other = bundle.with_weights(moved, "2")
    ours, peer = open_programs(programs, other), open_transducer(other)
    features = np.full((bundle.architecture.window, 80), -8.0, np.float32)
    (encoded, _), (expected, _) = ours.encode(features), peer.encode(features)
    predicted, wanted = (each.predict(np.array([3, 1]))[0] for each in (ours, peer))
    compare((encoded, predicted), (expected, wanted))
    compare([ours.join(encoded[:2], predicted)], [peer.join(encoded[:2], predicted)])
    changed = bundle.with_weights({name: value + noise[name] for name, value in bundle.weights.items()}, "3")
    with pytest.raises(BundleError, match=r"hold other weights of the encoder .* than bundle '3'; write it again"):
        open_programs(programs, changed)


def test_an_operator_without_a_counterpart_is_named() -> None:
    edges = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Erf", ["x"], ["y"], "odd")], "encoder", edges[:1], edges[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    with pytest.raises(BundleError, match=r"here: node 'odd' \(Erf\) has no place in an ExecuTorch program"):
        EncoderGraph(model, "here")
