"""What one utterance does to the student: how far it moves, at what cost of memory; what a new base leaves of it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import Accepted, Bundle, Cancelled, Corrected, Device, DeviceSettings, LearningSettings, Rating
from device_sdk.bundle.architecture import PRESETS
from device_sdk.feedback.signals import Signal
from device_sdk.learning import MaskSettings, StepSettings
from device_sdk.learning.delta import difference
from device_sdk.learning.learner import Student, rebased, step_bytes
from device_sdk.learning.step import global_norm
from tests.device_sdk.devices import KEY, LIGHT
from tests.signals import noise
from tests.speech import packaged

LEARNING = LearningSettings(
    passes=1, rewrite_nats=1e6, step=StepSettings(1e-3, clip_norm=1e6), masks=MaskSettings(0, 0, 0, 0)
)


def learned(folder: Path, bundle: Bundle, signal: Signal | None, learning: LearningSettings) -> tuple[int, float]:
    """(steps, how far they moved the weights) after one utterance; without a signal corrected to what was heard."""
    with Device.open(folder, KEY, bundle, DeviceSettings(learning=learning)) as device:
        before, result = device.student.weights, device.recognize(noise(9600, 3), 16_000)
        device.feedback(result, Corrected(result.text) if signal is None else signal)
        return device.learn().steps, global_norm(difference(device.student.weights, before))


@pytest.mark.parametrize(
    ("signal", "share"), [(Accepted(), 0.1), (Rating(1.0), 0.1), (None, 0.1), (LIGHT, 1.0), (Rating(0.8), 1.0)]
)
def test_what_was_served_right_moves_little(tmp_path: Path, tiny_bundle: Bundle, signal, share) -> None:
    (one, whole), (other, found) = (
        learned(tmp_path / str(part), tiny_bundle, signal, replace(LEARNING, confirmation=part)) for part in (1.0, 0.1)
    )
    assert one == other == 1 and whole > 0.0 and found == pytest.approx(share * whole, rel=0.01)


@pytest.mark.parametrize(
    ("passes", "signal", "steps"),
    [
        (None, LIGHT, 16),
        (None, Accepted(), 2),
        (None, None, 2),
        (None, Cancelled(), 2),
        (1, LIGHT, 1),
        (3, Accepted(), 3),
    ],
)
def test_what_had_to_be_corrected_is_gone_over_more_often(tmp_path, tiny_bundle, passes, signal, steps) -> None:
    assert learned(tmp_path, tiny_bundle, signal, LearningSettings(passes=passes, rewrite_nats=1e6))[0] == steps


@pytest.mark.parametrize(("nats", "steps"), [(1e6, 4), (0.0, 16)])
def test_a_correction_is_gone_over_until_it_is_heard(tmp_path, tiny_bundle, monkeypatch, nats, steps) -> None:
    monkeypatch.setattr("device_sdk.learning.learner._HEARD_NATS", nats)
    assert learned(tmp_path, tiny_bundle, LIGHT, LearningSettings(rewrite_nats=1e6))[0] == steps


STEP = """
import json, sys
from pathlib import Path
import numpy as np
from device_sdk.bundle import Bundle
from device_sdk.learning.learner import step_bytes
from device_sdk.learning.step import Course, sgd
from device_sdk.learning.settings import StepSettings
from device_sdk.runtimes.engine import Engine

def kilobytes(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line)

bundle = Bundle.open()
architecture, rng = bundle.architecture, np.random.default_rng(0)
session = Engine().training(bundle)
frames, length, count = (int(value) for value in sys.argv[1:])
tokens = [tuple(rng.integers(1, architecture.pieces, length).tolist()) for _ in range(count)]
features = rng.normal(-6.0, 2.0, (frames, architecture.mel_bins)).astype(np.float32)
parameters = {name: np.array(array) for name, array in bundle.weights.items()}
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
found = session.run(parameters, features, tokens, [1.0 / count] * count)
moved = sgd(parameters, found.gradients, 1.0, Course(), StepSettings())
print(json.dumps([1024 * (kilobytes("VmHWM") - before), step_bytes(architecture, "whole", frames, [length] * count)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's account of memory")
@pytest.mark.parametrize(("frames", "length", "count"), [(90, 4, 1), (600, 20, 5), (1800, 60, 1)])
def test_the_estimate_is_above_what_is_taken_and_not_far(frames: int, length: int, count: int) -> None:
    packaged()
    command = [sys.executable, "-c", STEP, str(frames), str(length), str(count)]
    taken, told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert taken <= told <= 3 * taken


def test_the_estimate_grows_with_what_it_is_of() -> None:
    architecture = PRESETS["small"]
    base = step_bytes(architecture, "whole", 300, [10])
    for frames, lengths in ((600, [10]), (300, [20]), (300, [10, 10])):
        assert step_bytes(architecture, "whole", frames, lengths) > base
    assert step_bytes(architecture, "joint", 300, [10]) <= step_bytes(architecture, "top", 300, [10]) < base


# A new base

vectors = st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3)


def arrays(values: list[float]) -> dict[str, np.ndarray]:
    return {"a": np.array(values[:1], np.float32), "b": np.array(values[1:], np.float32)}


def flat(weights) -> np.ndarray:
    return np.concatenate([weights["a"], weights["b"]])


def test_rebasing_by_hand() -> None:
    # own move (3, 4, 0), the base's move (2, 0, 0): of the own one (0, 4, 0) is left, half of it is kept.
    student = Student(arrays([4.0, 5.0, 1.0]), arrays([0.0, 0.0, 0.0]), steps=7, utterances=3)
    found = rebased(student, arrays([1.0, 1.0, 1.0]), arrays([3.0, 1.0, 1.0]), 0.5)
    np.testing.assert_allclose(flat(found.weights), [3.0, 3.0, 1.0])
    assert found.teacher is found.weights is found.start and (found.steps, found.utterances) == (0, 0)
    assert flat(rebased(student, found.weights, found.weights, 1.0).weights).tolist() == [4.0, 5.0, 1.0], (
        "the same base"
    )
    none = rebased(student, found.weights, student.teacher, 0.0)
    assert none.weights is student.teacher and none.start is None


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0])
def test_alone_a_device_does_not_add_what_the_base_took_from_it(rate: float) -> None:
    old, local = arrays([0.0, 1.0, 2.0]), arrays([1.0, -1.0, 2.5])
    new = {name: old[name] + np.float32(rate) * (local[name] - old[name]) for name in old}
    np.testing.assert_allclose(flat(rebased(Student(local, local), old, new, 1.0).weights), flat(new), atol=1e-6)


@given(vectors, vectors, vectors, st.floats(0, 1))
def test_what_is_kept_is_no_longer_than_the_own_move_and_never_points_with_the_bases(own, shift, old, keep) -> None:
    base, moved, change = arrays(old), np.array(own, np.float32), np.array(shift, np.float32)
    new = {name: base[name] + each for name, each in arrays(shift).items()}
    student = Student({name: base[name] + each for name, each in arrays(own).items()}, base)
    kept = flat(rebased(student, base, new, keep).weights) - flat(new)
    assert np.linalg.norm(kept) <= keep * np.linalg.norm(moved) + 1e-4 and float(kept @ change) <= 1e-3
