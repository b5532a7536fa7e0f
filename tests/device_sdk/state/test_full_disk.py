"""Where nothing can be written any more, a device opens and hears; what it cannot write it refuses, and says so."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk import Bundle, Device
from tests.device_sdk.devices import KEY, quick, tell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and forks are Linux's")

SETTINGS = replace(quick(), keep_corrected=True)

FULL = """
import json, logging, resource, sys
from device_sdk import *
from tests.device_sdk.devices import KEY, LIGHT, tell
from tests.device_sdk.state.test_full_disk import SETTINGS, figures
from tests.signals import noise
bundle = Bundle.open(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
logging.basicConfig(level=logging.WARNING)
with Device.open(sys.argv[1], KEY, bundle, SETTINGS) as device:
    said = {"figures": figures(device)}
    result = device.recognize(noise(9_600, 5), 16_000)
    said["heard"] = bool(result.text)
    for name, call in {
        "open": lambda: Device.open(sys.argv[1] + " new", KEY, bundle),
        "feedback": lambda: device.feedback(result, LIGHT),
        "learn": device.learn,
        "agree": lambda: device.agree("words"),
        "forget": device.forget,
    }.items():
        try:
            call()
            said[name] = "done"
        except StateError as error:
            said[name] = str(error)
    said["steps after"], said["consent"] = device.student.steps, device.consent.words
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    tell(device, 6)
    said["with room again"] = device.learn().steps
print(json.dumps(said))"""


def lived(folder: Path, bundle: Bundle, *, killed: bool = False) -> None:
    """A device that counted, learned, and keeps a correction."""
    with Device.open(folder, KEY, bundle, SETTINGS) as device:
        device.agree("keeping")
        tell(device, 0)
        device.learn()
        tell(device, 1)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)


def figures(device: Device) -> tuple[int, int, int]:
    learned = device.learned()
    return learned.utterances, learned.steps, learned.kept


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_device_without_room_opens_hears_and_refuses_to_write(tmp_path: Path, tiny_bundle: Bundle, killed) -> None:
    if not (child := os.fork() if killed else 0):
        lived(tmp_path, tiny_bundle, killed=killed)
    else:
        os.waitpid(child, 0)
        assert (tmp_path / "state.sqlite-wal").stat().st_size > 0
    command, environment = [sys.executable, "-c", FULL, tmp_path, tiny_bundle.path], {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["figures"], said["heard"]) == ([2, 1, 1], True)
    assert "counted in memory only" in done.stderr and "no room" in done.stderr
    for call in ("feedback", "learn", "agree", "forget", "open"):
        assert "make room on the disk" in said[call], said
    assert (said["steps after"], said["consent"]) == (1, False), "what was refused is not there either"
    assert said["with room again"] > 0
