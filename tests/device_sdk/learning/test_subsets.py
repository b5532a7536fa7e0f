"""Every subset learns end to end on a device, and moves what it names and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest

from device_sdk import Bundle, BundleError, Device, DeviceSettings, LearningSettings
from device_sdk.bundle.architecture import Architecture, Subset, factor_names, frozen_file, frozen_part, trainable
from device_sdk.bundle.streaming import subsets_of
from device_sdk.learning import StepSettings
from device_sdk.runtimes.training import TrainingSession
from export.bundles import refresh
from tests.device_sdk.devices import KEY, LIGHT
from tests.signals import hiss
from tests.tiny import write_tiny_bundle

DEEP = Architecture(2, 24, 1, 16, 16, 20, 64)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two encoder layers, so that one lies frozen beneath the top one."""
    return Bundle.open(write_tiny_bundle(tmp_path_factory.mktemp("deep") / "bundle", architecture=DEEP))


def settings(subset: Subset, **changes: object) -> DeviceSettings:
    step = StepSettings(learning_rate=0.05)
    return DeviceSettings(
        learning=LearningSettings(
            subset=subset, passes=2, replays=0, cost_weight=0.0, rewrite_nats=1e6, step=step, **changes
        )
    )


def corrected(device: Device, turns: int) -> list[float]:
    losses = []
    for _ in range(turns):
        device.feedback(device.recognize(hiss(1), 16_000), LIGHT)
        report = device.learn()
        assert report.steps == 2, report
        losses.append(report.loss)
    return losses


@pytest.mark.parametrize("subset", subsets_of(DEEP))
def test_a_device_learns(subset: Subset, deep: Bundle, tmp_path: Path) -> None:
    with Device.open(tmp_path, KEY, deep, settings(subset)) as device:
        losses = corrected(device, 3)
        assert losses[-1] < losses[0]
        moved = {name for name, value in device.student.weights.items() if (value != deep.weights[name]).any()}
        assert moved == set(trainable(DEEP, subset))
    with Device.open(tmp_path, KEY, deep, settings(subset)) as device:
        assert device.student.steps == 6 and corrected(device, 1)[0] < losses[0]


def test_adapters_keep_their_rank_over_restarts(deep: Bundle, tmp_path: Path) -> None:
    """Delta, state and recognizer know the sums alone; what changed of each matrix has the rank of its factors."""
    for _ in range(3):
        with Device.open(tmp_path, KEY, deep, settings("adapters", rank=2)) as device:
            corrected(device, 1)
            weights = device.student.weights
    for name in trainable(DEEP, "adapters"):
        singular = np.linalg.svd((weights[name] - deep.weights[name]).astype(np.float64), compute_uv=False)
        assert singular[0] > 1e-4
        assert (singular[2:] < 1e-2 * singular[0]).all(), (name, singular[:4])


def test_a_bundle_without_the_graphs_opens_and_says_what_to_do(deep: Bundle, tmp_path: Path) -> None:
    folder = refresh(deep, tmp_path / "old")
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in list(manifest["files"]):
        if name.startswith(("training.top", "frozen.")):
            del manifest["files"][name]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    old = Bundle.open(folder)
    assert TrainingSession(old, subset="whole").trainable == trainable(DEEP, "whole")
    with pytest.raises(BundleError, match=r"holds no training\.top\.onnx, .*run: idiolect export refresh"):
        TrainingSession(old, subset="top")
    with pytest.raises(BundleError, match=r"from frozen layers, which give \[\]; export the bundle again"):
        TrainingSession(old, subset="joint")


@pytest.mark.parametrize("subset", subsets_of(DEEP))
def test_names_and_files(subset: Subset, deep: Bundle) -> None:
    session = TrainingSession(deep, subset=subset)
    names = trainable(DEEP, subset)
    expected = [each for name in names for each in factor_names(name)] if subset == "adapters" else list(names)
    assert list(session.trainable) == expected and deep.has(frozen_file(subset)) == bool(frozen_part(DEEP, subset))
    assert not set(names) & set(frozen_part(DEEP, subset).parameters(DEEP))
