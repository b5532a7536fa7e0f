"""Ctrl-C while several processes decode: quiet, at once, and nobody is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from device_sdk.bundle import Bundle
from tests.server.parties import until
from tests.signals import noise

PATIENCE = 20.0
HANGING = """
import sys, time
from pathlib import Path
started = Path(__file__).parent
if "multiprocessing" in " ".join(sys.orig_argv) and "spawn_main" in " ".join(sys.orig_argv):
    (started / f"born-{time.time_ns()}").touch()
    import device_sdk.audio as audio
    def read(path, **more):
        (started / f"busy-{path.stem}").touch()
        time.sleep(600)
    audio.read_audio = read"""


@pytest.mark.skipif(sys.platform == "win32", reason="process groups are POSIX'")
@pytest.mark.parametrize("moment", ["born", "busy"])
@pytest.mark.parametrize("whom", ["group", "parent"])
def test_ctrl_c_is_quiet_and_leaves_no_process(tiny_bundle: Bundle, tmp_path: Path, moment: str, whom: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGING)
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for seed in range(5):
        soundfile.write(recordings / f"{seed}.wav", noise(8_000, seed), 16_000)
    command = [sys.executable, "-m", "device_sdk.cli", "transcribe", "--bundle", str(tiny_bundle.path)]
    program = subprocess.Popen(
        [*command, str(recordings), "--jobs", "2", "--output", str(tmp_path / "out.jsonl")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    try:
        until(lambda: len(list(tmp_path.glob(f"{moment}-*"))) >= (2 if moment == "busy" else 1), PATIENCE)
        (os.killpg if whom == "group" else os.kill)(program.pid, signal.SIGINT)
        out, err = program.communicate(timeout=PATIENCE)
        assert (program.returncode, out.strip(), err.strip()) == (130, "", "")
        until(lambda: not _alive(program.pid), PATIENCE)
    finally:
        if _alive(program.pid):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert not list(tmp_path.glob("*out.jsonl*")), "no half of an output"


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
