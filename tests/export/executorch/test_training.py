"""ExecuTorch's training programs beside the ONNX training graph: the same losses and gradients, however padded."""

import itertools
import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import Accepted, BundleError, ConfigurationError, Corrected, Device, DeviceSettings, LearningError
from device_sdk.bundle.architecture import Architecture
from device_sdk.learning.guard import GuardSettings
from device_sdk.learning.settings import LearningSettings
from device_sdk.runtimes.executorch import MANIFEST, Bucket, ExecutorchTrainingSession
from device_sdk.runtimes.executorch.training import distinct_prefixes, pad
from device_sdk.runtimes.protocol import Gradients, utterance_feeds
from device_sdk.runtimes.training import TrainingSession
from export.benchmarks import learn, runtimes
from export.executorch import TRAINING_BUCKETS, TrainingStep, export_executorch
from export.graphs import training
from tests.export.graphs.oracle import loss_and_gradients
from tests.signals import noise
from tests.speech import clips, packaged
from tests.tiny import tiny_weights

torch = pytest.importorskip("torch")

installed = pytest.mark.skipif(find_spec("executorch") is None, reason="ExecuTorch is not installed")

SMALL = Architecture(1, 6, 1, 5, 4, 7, 9, mel_bins=4, subsampling_factor=2)
BUCKETS = (Bucket(frames=32, tokens=4, hypotheses=3), Bucket(frames=48, tokens=12, hypotheses=8))
HYPOTHESES = [
    [[3, 1, 4]],
    [[3, 1, 4], [3, 1], []],
    [[5, 1, 2, 6], [5, 1, 2], [5, 2, 2, 6]],
    [[7, 1, 7, 1, 7, 1, 7], [7, 1, 7], [1], [], [7, 1, 7, 1, 6, 1, 7, 2, 3]],
]


def utterance(architecture, hypotheses, stacked, seed=0):
    """(parameters, features with a frame left over, hypotheses, weights, costs, cost_scale)."""
    rng, factor = np.random.default_rng(seed), architecture.subsampling_factor
    count = len(hypotheses)
    parameters = {name: value * np.float32(0.5) for name, value in tiny_weights(architecture, seed).items()}
    features = rng.normal(-6.0, 3.0, (stacked * factor + factor - 1, architecture.mel_bins)).astype(np.float32)
    weights, costs = rng.normal(size=count).astype(np.float32), rng.integers(0, 4, count).astype(np.float32)
    return parameters, features, hypotheses, weights, costs, 0.7


def distance(found, expected):
    """Relative L2 distance of all gradients together."""
    one, other = (np.concatenate([value.ravel() for value in each.values()]) for each in (found, expected))
    return np.linalg.norm(one.astype(np.float64) - other) / np.linalg.norm(other)


def compare(found, expected, tolerance=2e-6):
    """Their distance, after losses were compared."""
    losses = found.negative_log_likelihoods, expected.negative_log_likelihoods
    np.testing.assert_allclose(*losses, rtol=tolerance, atol=5e-6)
    assert found.expected_cost == pytest.approx(expected.expected_cost, rel=1e-4, abs=1e-6)
    assert list(found.gradients) == list(expected.gradients)
    return distance(found.gradients, expected.gradients)


def test_the_torch_source_is_the_onnx_graph_however_padded():
    """29 frames in 32, 3 tokens in 4, 2 hypotheses in 3: padding changes neither losses nor gradients."""
    hypotheses = HYPOTHESES[1][:2]
    given = utterance(SMALL, hypotheses, 29)
    step, parameters, feeds = TrainingStep(SMALL), given[0], utterance_feeds(SMALL, *given[1:])
    feeds["pull"] = np.random.default_rng(1).normal(size=feeds["pull"].shape).astype(np.float32)
    expected = TrainingSession(graph=training(SMALL), architecture=SMALL)._gradients(parameters, feeds)
    feeds = pad(feeds, SMALL.subsampling_factor, BUCKETS[0])
    inputs = [*feeds.values(), *(parameters[name] for name in step.names)]
    with torch.no_grad():
        likelihoods, cost, *gradients = step(*(torch.from_numpy(np.array(each)) for each in inputs))
    named = dict(zip(SMALL.parameter_shapes(), (each.numpy() for each in gradients), strict=True))
    assert compare(Gradients(likelihoods.numpy()[: len(hypotheses)], float(cost), named), expected) < 1e-5


@given(st.lists(st.lists(st.integers(1, 3), max_size=5), min_size=1, max_size=5), st.integers(0, 3))
def test_prefixes_that_hypotheses_share_have_one_number(hypotheses, absent):
    count = len(hypotheses) + absent
    tokens, lengths = np.zeros((count, 5), np.int64), np.full(count, -1)
    for row, said in enumerate(hypotheses):
        tokens[row, : len(said)], lengths[row] = said, len(said)
    representatives, prefix_of = distinct_prefixes(tokens, lengths)
    prefixes = {tuple(said[:length]) for said in hypotheses for length in range(len(said) + 1)}
    assert len(representatives) == len(prefixes) and prefix_of.shape == (6 * count,)
    for row, said in enumerate(hypotheses):
        for length in range(len(said) + 1):
            first = int(representatives[prefix_of[length * count + row]])
            assert first // count == length and hypotheses[first % count][:length] == said[:length]


@pytest.fixture(scope="module")
def folder(tiny_bundle, tmp_path_factory):
    return export_executorch(tiny_bundle, tmp_path_factory.mktemp("executorch") / "programs", BUCKETS)


@installed
@pytest.mark.slow
def test_programs_give_the_losses_and_gradients_of_the_onnx_graph(folder, tiny_bundle):
    """Every bucket, from one frame to all, programs used again and again."""
    architecture = tiny_bundle.architecture
    ours, peer = ExecutorchTrainingSession(folder, architecture), TrainingSession(tiny_bundle)
    assert ours.trainable == peer.trainable
    for seed, (hypotheses, stacked) in enumerate(itertools.product(HYPOTHESES, (1, 9, 16, 29, 48))):
        given = utterance(architecture, hypotheses, stacked, seed)
        assert ours.too_large(given[1], hypotheses) is None and compare(ours.run(*given), peer.run(*given)) < 1e-5
        feeds = utterance_feeds(architecture, *given[1:])
        feeds["pull"] = np.random.default_rng(seed).normal(size=feeds["pull"].shape).astype(np.float32)
        assert compare(ours._gradients(given[0], feeds), peer._gradients(given[0], feeds)) < 1e-5
    acoustic = ExecutorchTrainingSession(folder, architecture, subset="acoustic")
    assert tuple(acoustic.run(*given).gradients) == acoustic.trainable
    assert all(name.startswith(("encoder", "joiner.enc")) for name in acoustic.trainable)


@installed
@pytest.mark.slow
@pytest.mark.parametrize(("hypotheses", "stacked"), [([[1]], 49), ([[1] * 13], 8), ([[1]] * 9, 8)])
def test_what_fits_no_bucket_is_refused_with_its_sizes(folder, tiny_bundle, hypotheses, stacked):
    session = ExecutorchTrainingSession(folder, tiny_bundle.architecture)
    given = utterance(tiny_bundle.architecture, hypotheses, stacked)
    assert session.too_large(given[1], hypotheses) == "the utterance is larger than every training program"
    with pytest.raises(LearningError, match=rf"found \({stacked}, .* expected at most \(48, 12, 8\)"):
        session.run(*given)


@installed
@pytest.mark.slow
def test_a_damaged_or_missing_training_program_is_refused_by_name(folder, tiny_bundle, tmp_path):
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    given = utterance(tiny_bundle.architecture, [[1]], 8)
    (copy / BUCKETS[0].file).write_bytes((copy / BUCKETS[1].file).read_bytes())
    with pytest.raises(BundleError, match=r"training-32-4-3.pte: \d+ bytes with sha256"):
        ExecutorchTrainingSession(copy, tiny_bundle.architecture).run(*given)
    described = json.loads((copy / MANIFEST).read_text("utf-8"))
    described["files"][BUCKETS[0].file] = described["files"][BUCKETS[1].file]
    (copy / MANIFEST).write_text(json.dumps(described), "utf-8")
    with pytest.raises(BundleError, match=r"training-32-4-3.pte: inputs have shapes"):
        ExecutorchTrainingSession(copy, tiny_bundle.architecture).run(*given)
    (copy / MANIFEST).write_text(json.dumps(described | {"training": []}), "utf-8")
    with pytest.raises(BundleError, match=r"training: found no bucket.*--training"):
        ExecutorchTrainingSession(copy, tiny_bundle.architecture)
    with pytest.raises(ConfigurationError, match="adapters"):
        ExecutorchTrainingSession(folder, tiny_bundle.architecture, subset="adapters")


@installed
@pytest.mark.slow
def test_a_device_of_the_packaged_bundle_learns_from_speech_by_the_gradients_of_the_onnx_graph(tmp_path, monkeypatch):
    """In all buckets that ship: a short command, sentences, and 12 s of them in one utterance. Every step is compared
    from the same weights: two devices that go their own ways drift apart by their rounding, which steps multiply. Where
    hypotheses are near each other or frames many, rounding is multiplied within a step, too: what is due is told by how
    far exact gradients move when every weight moves by half a unit in its last place, of which a step takes dozens.
    Compared are those of the transducer: what phones add comes to both as the same numbers, and may cancel most of
    it."""
    bundle, spoken = packaged(), clips()
    folder = export_executorch(bundle, tmp_path / "programs", TRAINING_BUCKETS)
    sounds = [*spoken[:4], np.concatenate(spoken)[: 12 * 16_000]]
    peer, gradients, steps = TrainingSession(bundle), ExecutorchTrainingSession._gradients, []

    def compared(session, parameters, feeds):
        alone = feeds | {"pull": np.zeros_like(feeds["pull"])}
        found, expected = gradients(session, parameters, alone), peer._gradients(parameters, alone)
        steps.append(compare(found, expected, tolerance=3e-5))
        if steps[-1] > 3e-5:
            weights = {**bundle.weights, **parameters}
            signs = np.random.default_rng(0)
            moved = {name: each * (1 + 2.0**-24 * signs.choice((-1, 1), each.shape)) for name, each in weights.items()}
            said = [row[:end].tolist() for row, end in zip(feeds["tokens"], feeds["lengths"], strict=True)]
            given = feeds["features"], said, *(feeds[name] for name in ("weights", "costs", "cost_scale"))
            exact, near = (loss_and_gradients(bundle.architecture, each, *given)[2] for each in (weights, moved))
            assert distance(found.gradients, exact) < max(3e-5, 100 * distance(near, exact))
        return gradients(session, parameters, feeds)

    monkeypatch.setattr(ExecutorchTrainingSession, "_gradients", compared)
    settings = DeviceSettings(
        learning=LearningSettings(wait_seconds=0.0, rewrite_nats=1e6),  # whatever was said
        guard=GuardSettings(watch=False, withhold=0),
        programs=folder,
        runtime="executorch",
    )
    more = "please", "and set a timer for twenty five minutes and remind me to water the plants", "please"
    with Device.open(tmp_path / "state", bytes(32), bundle, settings) as device:
        device._local._generator = np.random.default_rng(0)  # masks
        for number, sound in enumerate(sounds):
            heard = device.recognize(sound, 16_000)
            device.feedback(heard, Accepted() if number % 2 else Corrected(f"{heard.text} {more[number // 2]}"))
        report, student = device.learn(), device.student.weights
        assert report.steps >= 4 and report.skipped == {}
        assert any((student[name] != device.base.weights[name]).any() for name in student)
        assert device._local._training._beneath._loaded.keys() == set(TRAINING_BUCKETS)
    assert len(steps) >= report.steps and max(steps) < 1e-3
    assert np.quantile(steps, 0.9) < 5e-5 and np.median(steps) < 1e-5


@installed
@pytest.mark.slow
def test_the_benchmark_says_how_far_gradients_are_apart(monkeypatch):
    monkeypatch.setattr(learn, "TURNS", 1)
    *costs, apart = runtimes.training_figures()
    assert apart.holds and 0.0 < apart.ours < 1e-5 and len(costs) == 3 and all(figure.ours > 0.0 for figure in costs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runtime": "tensorflow"}, r"device.runtime: found 'tensorflow', expected one of 'onnxruntime', 'executorch'"),
        ({"runtime": "executorch", "precision": "int8"}, r"device.precision: found int8"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        DeviceSettings(**settings)


def test_a_device_without_programs_says_how_to_write_them(tiny_bundle, tmp_path):
    settings = DeviceSettings(runtime="executorch", programs=tmp_path / "none")
    device = Device.open(tmp_path / "state", bytes(32), tiny_bundle, settings)
    with device, pytest.raises(BundleError, match=r"none: no such folder; .*idiolect export executorch"):
        device.recognize(noise(16_000), 16_000)
