"""What a step is said to take of memory, against what the process is seen to take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.speech import packaged

STEP = """
import json, sys
from pathlib import Path
import numpy as np
from device_sdk.bundle import Bundle
from device_sdk.learning.learner import step_bytes
from device_sdk.learning.step import Momentum, sgd
from device_sdk.learning.settings import StepSettings
from device_sdk.runtimes.training import TrainingSession

def kilobytes(name):
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if name in line)

bundle = Bundle.open()
architecture, rng = bundle.architecture, np.random.default_rng(0)
session = TrainingSession(bundle)
frames, length, count = (int(value) for value in sys.argv[1:])
tokens = [tuple(rng.integers(1, architecture.pieces, length).tolist()) for _ in range(count)]
features = rng.normal(-6.0, 2.0, (frames, architecture.mel_bins)).astype(np.float32)
parameters = {name: np.array(array) for name, array in bundle.weights.items()}
before = kilobytes("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
found = session.run(parameters, features, tokens, [1.0] * count)
moved = sgd(parameters, found.gradients, 1.0, Momentum(), StepSettings(momentum=0.9))
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
