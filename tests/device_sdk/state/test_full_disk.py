"""Where nothing can be written any more, a device opens and hears; what it cannot write it refuses, and says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_sdk import Bundle, Device, StateError
from tests.device_sdk.devices import KEY, LIGHT, quick, tell
from tests.signals import noise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts are Linux's")

SETTINGS = replace(quick(), keep_corrected=True)

FULL = """
import json, logging, resource, sys
from device_sdk import *
from tests.device_sdk.state.test_full_disk import KEY, LIGHT, SETTINGS, figures, noise, tell
bundle = Bundle.open(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
logging.basicConfig(level=logging.WARNING)
with Device.open(sys.argv[1], KEY, bundle, SETTINGS) as device:
    said = {"figures": figures(device)}
    result = device.recognize(noise(9_600, 5), 16_000)
    said["heard"] = bool(result.text)
    for name, call in {
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
print(json.dumps(said))
"""


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
    if killed:
        child = os.fork()
        if not child:
            lived(tmp_path, tiny_bundle, killed=True)
        os.waitpid(child, 0)
        assert (tmp_path / "state.sqlite-wal").stat().st_size > 0
    else:
        lived(tmp_path, tiny_bundle)
    command, environment = [sys.executable, "-c", FULL, tmp_path, tiny_bundle.path], {"PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["figures"], said["heard"]) == ([2, 1, 1], True)
    assert "counted in memory only" in done.stderr and "no room" in done.stderr
    for call in ("feedback", "learn", "agree", "forget"):
        assert "make room on the disk" in said[call], said
    assert (said["steps after"], said["consent"]) == (1, False), "what was refused is not there either"
    assert said["with room again"] > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path) -> Path:
    with (disk / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    return disk / "ballast"


def test_a_full_disk_opens(small_disk: Path, tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_disk / "state"
    lived(folder, tiny_bundle)
    ballast = fill(small_disk)
    with Device.open(folder, KEY, tiny_bundle, SETTINGS) as device:
        assert figures(device) == (2, 1, 1)
        result = device.recognize(noise(9_600, 7), 16_000)
        assert result.text
        with pytest.raises(StateError, match="make room on the disk"):
            device.feedback(result, LIGHT)
    assert "no room" in caplog.text
    ballast.unlink()
    with Device.open(folder, KEY, tiny_bundle, SETTINGS) as device:
        assert figures(device) == (2, 1, 1)


def test_without_room_no_new_state_begins(small_disk: Path, tiny_bundle: Bundle) -> None:
    fill(small_disk)
    with pytest.raises(StateError, match="make room on the disk"):
        Device.open(small_disk / "new", KEY, tiny_bundle)
