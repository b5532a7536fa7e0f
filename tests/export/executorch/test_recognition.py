"""ExecuTorch's programs beside the torch network they come from and beside onnxruntime on the same weights."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from device_sdk.bundle.architecture import PRESETS
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.errors import BundleError, MissingExtraError
from device_sdk.runtimes.executorch import MANIFEST, PROGRAMS, ExecutorchTransducer
from device_sdk.runtimes.executorch.transducer import program_constants
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from export.benchmarks import runtimes, start
from export.benchmarks.decode import shipped_speech
from export.executorch import export_executorch
from export.executorch.steps import BATCH, EncoderStep, JoinerStep, PredictorStep
from export.networks.rnnt import RNNT
from tests.device_sdk.bundle.test_bundle import edit, flip, rewritten
from tests.device_sdk.bundle.test_bundle import replace as replaced
from tests.signals import noise
from tests.speech import SPEECH, packaged
from tests.tiny import tiny_weights

torch = pytest.importorskip("torch")
installed = pytest.mark.skipif(find_spec("executorch") is None, reason="ExecuTorch is not installed")

DEEP = replace(PRESETS["tiny"], encoder_layers=3, predictor_layers=2, predictor_size=24, joiner_size=40)
BUCKET = {"frames": 32, "tokens": 1, "hypotheses": 1}


@pytest.fixture(scope="module")
def bundle():
    return packaged()


@pytest.fixture(scope="module")
def folder(bundle, tmp_path_factory):
    return export_executorch(bundle, tmp_path_factory.mktemp("executorch") / "new")


@pytest.fixture(scope="module")
def transducer(folder, bundle):
    return ExecutorchTransducer(folder, bundle)


@pytest.fixture(scope="module")
def peer(bundle):
    return OnnxTransducer(bundle)


def state(layers, rows, size, seed=0):
    random = np.random.default_rng(seed)
    return tuple(0.3 * random.standard_normal((layers, rows, size), np.float32) for _ in range(2))


def features(frames, seed=0):
    return (np.random.default_rng(seed).standard_normal((frames, 64)) * 3.0 - 6.0).astype(np.float32)


def stepped(step, inputs, state):
    """The first row of each step's outputs."""
    (h, c), found = (state, state), []
    for each in inputs:
        row, h, c = step(each, h, c)
        found.append(row[0])
    return torch.stack(found)


@pytest.mark.parametrize("architecture", [PRESETS["tiny"], DEEP, PRESETS["bench"]], ids=["tiny", "deep", "bench"])
def test_the_steps_are_the_network(architecture):
    network = RNNT(architecture).from_parameters(tiny_weights(architecture)).eval()
    frames, tokens = torch.from_numpy(features(15)), torch.tensor([3, 1, 4, 1, 5])
    with torch.no_grad():
        expected, predicted = network.encode(frames[None])[0], network.predict(tokens[None])[0]
        chunks, rows = frames.split(3), [torch.tensor([int(token), 7]) for token in (0, *tokens)]
        h = torch.zeros(architecture.encoder_layers, 1, architecture.encoder_size)
        torch.testing.assert_close(stepped(EncoderStep(network), chunks, h), expected, atol=1e-5, rtol=1e-5)
        h = torch.zeros(architecture.predictor_layers, 2, architecture.predictor_size)
        torch.testing.assert_close(stepped(PredictorStep(network), rows, h), predicted, atol=1e-5, rtol=1e-5)
        joined = JoinerStep(network)(expected, predicted[:5])
    torch.testing.assert_close(joined.exp().sum(-1), torch.ones(5))


@installed
@pytest.mark.parametrize("frames", [0, 6, 30, 36])
def test_the_encoder_is_onnxruntimes(transducer, peer, frames):
    sizes = peer.architecture
    for before in (None, state(sizes.encoder_layers, 1, sizes.encoder_size)):
        for found, expected in zip(
            transducer.encode(features(frames), before), peer.encode(features(frames), before), strict=True
        ):
            np.testing.assert_allclose(found, expected, atol=1e-4)
    assert transducer.encode(features(0))[0].shape == (0, sizes.joiner_size)
    with pytest.raises(ValueError, match=r"features: found shape \(4, 64\)"):
        transducer.encode(features(4))


@installed
@pytest.mark.parametrize("rows", [1, 2, 9, BATCH, BATCH + 1])
def test_predictor_and_joiner_are_onnxruntimes_for_any_batch(transducer, peer, rows):
    sizes = peer.architecture
    tokens = np.random.default_rng(rows).integers(0, sizes.pieces, rows)
    for before in (None, state(sizes.predictor_layers, rows, sizes.predictor_size)):
        (predicted, after), (expected, wanted) = (run.predict(tokens, before) for run in (transducer, peer))
        np.testing.assert_allclose(predicted, expected, atol=1e-4)
        np.testing.assert_allclose(after[0], wanted[0], atol=1e-4)
        np.testing.assert_allclose(after[1], wanted[1], atol=1e-4)
    for encoded in (features(1)[:, : sizes.joiner_size], np.tile(predicted[:1], (rows, 1))):
        encoded = np.resize(encoded, (len(encoded), sizes.joiner_size))
        found = transducer.join(encoded, predicted)
        np.testing.assert_allclose(found, peer.join(encoded, predicted), atol=1e-4)
        assert found.shape == (rows, sizes.pieces)


@installed
@pytest.mark.parametrize("speech", SPEECH)
def test_the_best_hypotheses_are_onnxruntimes(bundle, transducer, speech):
    ours, peers = Recognizer(bundle, transducer=transducer), Recognizer(bundle)
    for clip in speech():
        (found, *_), (expected, *_) = (recognizer.recognize(clip, 16_000).nbest for recognizer in (ours, peers))
        assert found.tokens == expected.tokens and found.text == expected.text
        assert abs(found.score - expected.score) < 1e-2


@installed
@pytest.mark.slow
def test_the_benchmark_gives_figures(bundle, folder, monkeypatch):
    for module in (runtimes, start):
        monkeypatch.setattr(module, "RUNS", 1)
    monkeypatch.setattr(runtimes, "speech", lambda: shipped_speech()[:2])
    monkeypatch.setattr(runtimes, "export_executorch", lambda bundle, out: folder)  # it takes long, and is done
    monkeypatch.setattr(runtimes, "training_figures", list)  # tested by itself
    figures = runtimes.benchmark()
    assert figures and all(np.isfinite(figure.ours) for figure in figures) and all(f.holds for f in figures[-2:])


@installed
def test_threads_share_one(bundle, transducer):
    recognizer = Recognizer(bundle, DecodingSettings(beam=4, nbest=4), transducer=transducer)
    clips = [noise(16_000, seed) for seed in range(4)]
    alone = [recognizer.recognize(clip, 16_000) for clip in clips]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(partial(recognizer.recognize, sample_rate=16_000), clips * 2))
    assert [r.nbest for r in together] == [r.nbest for r in alone * 2]


@installed
def test_every_program_runs_on_xnnpack_and_the_encoder_wholly(folder):
    for name in PROGRAMS:
        assert b"XnnpackBackend" in (folder / name).read_bytes()
    assert b"aten::" not in (folder / "encoder.pte").read_bytes()  # no operator is left to the portable kernels
    described = json.loads((folder / MANIFEST).read_text("utf-8"))
    assert described["programs"]["predictor.pte"]["inputs"]["tokens"] == ["batch"]


@installed
def test_programs_take_the_weights_of_any_version(folder, bundle, transducer, peer):
    """Two versions at once: one does not leak into the other."""
    rng = np.random.default_rng(3)
    weights = {
        name: value + rng.normal(0, 0.05, value.shape).astype(np.float32) for name, value in bundle.weights.items()
    }
    other = bundle.with_weights(weights, "2")
    for found, expected in ((ExecutorchTransducer(folder, other), OnnxTransducer(other)), (transducer, peer)):
        encoded, _ = found.encode(features(30))
        predicted, _ = found.predict(np.array([3, 1]))
        np.testing.assert_allclose(encoded, expected.encode(features(30))[0], atol=1e-4)
        np.testing.assert_allclose(predicted, expected.predict(np.array([3, 1]))[0], atol=1e-4)
        np.testing.assert_allclose(found.join(encoded[:2], predicted), expected.join(encoded[:2], predicted), atol=2e-4)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def described(change):
    return edit(change, MANIFEST)


def copied(name, change):
    """A program with other content, and the hash that fits it."""
    return lambda folder: replaced(name, change(folder), MANIFEST)(folder)


@installed
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), r"executorch.json: cannot be read \(No such file"),
        (lambda folder: (folder / MANIFEST).write_text("{"), r"executorch.json: field \(whole file\)"),
        (described(lambda d: d.pop("weights")), r"executorch.json: field weights: Field required"),
        (described(lambda d: d.update(batch=0)), r"executorch.json: field batch"),
        (described(lambda d: d.update(architecture="0" * 64)), r"architecture is 0.*another bundle's; write it again"),
        (described(lambda d: d.update(format_version=99)), r"format_version is 99, this version reads"),
        (described(lambda d: d["files"].pop("joiner.pte")), r"files: 'joiner.pte' is missing"),
        (described(lambda d: d["programs"].pop("joiner.pte")), r"programs: the shapes are not"),
        (
            described(lambda d: d["constants"]["joiner.pte"].pop("joiner.output.bias")),
            "'joiner.output.bias' is missing",
        ),
        (described(lambda d: d["constants"]["encoder.pte"].update({"features.mean": 10**9})), "is said to be at bytes"),
        (described(lambda d: d.update(training=[BUCKET | {"frames": 9}])), r"executorch.json: field training.0.frames"),
        (described(lambda d: d.update(training=[BUCKET])), r"files: 'training-32-1-1.pte' is missing"),
        (described(lambda d: d.update(batch=7)), r"predictor.pte: inputs have shapes"),
        (lambda folder: (folder / "joiner.pte").unlink(), r"joiner.pte: cannot be read"),
        (rewritten("encoder.pte", flip), r"encoder.pte: \d+ bytes with sha256 .*, expected"),
        (replaced("encoder.pte", b"", MANIFEST), r"encoder.pte: constants: .* of 0, behind 0"),
        (copied("encoder.pte", lambda folder: bytes((folder / "encoder.pte").stat().st_size)), r"cannot load"),
        (copied("predictor.pte", lambda folder: (folder / "joiner.pte").read_bytes()), r"to be at bytes"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(copy, bundle, damage, message):
    damage(copy)
    with pytest.raises(BundleError, match=message):
        ExecutorchTransducer(copy, bundle)


@installed
def test_programs_that_compute_nonsense_are_refused(folder, bundle, monkeypatch):
    def unfit(sizes, weights):
        found = program_constants(sizes, weights)
        return found | {"joiner.pte": {name: value * np.nan for name, value in found["joiner.pte"].items()}}

    monkeypatch.setattr("device_sdk.runtimes.executorch.transducer.program_constants", unfit)
    with pytest.raises(BundleError, match="probabilities that do not sum to 1"):
        ExecutorchTransducer(folder, bundle)


@installed
def test_writing_again_replaces(folder, bundle, copy, monkeypatch):
    monkeypatch.setattr("export.executorch.writer.lower_to_xnnpack", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_executorch(bundle, copy)
    assert not (copy / MANIFEST).exists()  # nothing loads a folder that is half written


@installed
def test_a_missing_install_names_the_extra(copy, bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'idiolect\[executorch\]'"):
        ExecutorchTransducer(copy, bundle)
    monkeypatch.setitem(sys.modules, "executorch.exir", None)
    with pytest.raises(MissingExtraError, match=r"'executorch.exir'.*pip install 'idiolect-server\[train\]'"):
        export_executorch(bundle, copy)
