"""Where nothing can be written any more, a device opens and hears; what it cannot write it refuses, and says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_sdk import Bundle, Corrected, Device, DeviceSettings, LearningSettings, StateError
from tests.signals import noise

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and mounts are Linux's")

KEY = bytes(range(32))
SETTINGS = DeviceSettings(keep_corrected=True, learning=LearningSettings(passes=1))

FULL = """
import json, logging, resource, sys
from device_sdk import *
from tests.device_sdk.state.test_full_disk import KEY, SETTINGS
from tests.signals import noise
bundle = Bundle.open(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
logging.basicConfig(level=logging.WARNING)
said = {}
with Device.open(sys.argv[1], KEY, bundle, SETTINGS) as device:
    before = device.learned()
    said["utterances"], said["steps"], said["kept"] = before.utterances, before.steps, before.kept
    result = device.recognize(noise(9_600, 5), 16_000)
    said["heard"] = bool(result.text)
    for name, call in {
        "feedback": lambda: device.feedback(result, Corrected("lights on")),
        "learn": lambda: device.learn(),
        "agree": lambda: device.agree("words"),
        "forget": lambda: device.forget(),
    }.items():
        try:
            call()
            said[name] = "done"
        except StateError as error:
            said[name] = str(error)
    said["steps after"] = device.student.steps
    said["consent"] = device.consent.words
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    device.feedback(device.recognize(noise(9_600, 6), 16_000), Corrected("lights on"))
    said["with room again"] = device.learn().steps
print(json.dumps(said))
"""


def lived(folder: Path, bundle: Bundle, *, killed: bool = False) -> None:
    """A device that counted, learned, and keeps a correction."""
    with Device.open(folder, KEY, bundle, SETTINGS) as device:
        device.agree("keeping")
        for seed in range(2):
            device.feedback(device.recognize(noise(9_600, seed), 16_000), Corrected("turn on the light"))
            if not seed:
                device.learn()
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)


def figures(folder: Path, bundle: Bundle) -> tuple[int, int, int]:
    with Device.open(folder, KEY, bundle, SETTINGS) as device:
        learned = device.learned()
        return learned.utterances, learned.steps, learned.kept


@pytest.mark.parametrize("killed", [False, True], ids=["closed", "killed"])
def test_a_device_without_room_opens_hears_and_refuses_to_write(
    tmp_path: Path, tiny_bundle: Bundle, killed: bool
) -> None:
    if killed:
        child = os.fork()
        if not child:
            lived(tmp_path, tiny_bundle, killed=True)
        os.waitpid(child, 0)
        assert (tmp_path / "state.sqlite-wal").stat().st_size > 0
    else:
        lived(tmp_path, tiny_bundle)
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path), str(tiny_bundle.path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["utterances"], said["steps"], said["kept"], said["heard"]) == (2, 1, 1, True)
    assert "counted in memory only" in done.stderr and "no room" in done.stderr
    for call in ("feedback", "learn", "agree", "forget"):
        assert "make room on the disk" in said[call], said
    assert (said["steps after"], said["consent"]) == (1, False), "what was refused is not there either"
    assert said["with room again"] > 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        shutil.which("mount")
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True, check=False
        ).returncode
    )
    if not mounted:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_opens(small_disk: Path, tiny_bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    folder, ballast = small_disk / "state", small_disk / "ballast"
    lived(folder, tiny_bundle)
    expected = figures(folder, tiny_bundle)
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    with Device.open(folder, KEY, tiny_bundle, SETTINGS) as device:
        learned = device.learned()
        assert (learned.utterances, learned.steps, learned.kept) == expected
        result = device.recognize(noise(9_600, 7), 16_000)
        assert result.text
        with pytest.raises(StateError, match="make room on the disk"):
            device.feedback(result, Corrected("lights on"))
    assert "no room" in caplog.text
    ballast.unlink()
    assert figures(folder, tiny_bundle) == expected


def test_without_room_no_new_state_begins(small_disk: Path, tiny_bundle: Bundle) -> None:
    with (small_disk / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))
    with pytest.raises(StateError, match="make room on the disk"):
        Device.open(small_disk / "new", KEY, tiny_bundle)
