"""Ctrl-C while files are decoded: quiet, at once, nobody is left, and what is finished is kept."""

import json
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
STUCK = """
import time
from pathlib import Path
import device_sdk.audio as audio
read = audio.read_audio
def stuck(path, **more):
    if path.stem == "3":
        (Path(__file__).parent / "stuck").touch()
        time.sleep(600)
    return read(path, **more)
audio.read_audio = stuck"""
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
    program = _transcribing(tiny_bundle, tmp_path, HANGING, jobs=2)
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


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX'")
@pytest.mark.parametrize(("jobs", "before"), [(1, None), (2, "earlier results"), (1, "earlier results")])
def test_ctrl_c_keeps_the_files_that_are_done(
    tiny_bundle: Bundle, tmp_path: Path, jobs: int, before: str | None
) -> None:
    """And what was there before, in whose place they were to go."""
    output = tmp_path / "out.jsonl"
    if before is not None:
        output.write_text(before)
    program = _transcribing(tiny_bundle, tmp_path, STUCK, jobs)
    place = output if before is None else tmp_path / "out.jsonl.part"
    try:
        until((tmp_path / "stuck").exists, PATIENCE)
        assert program.stdout is not None and program.stderr is not None
        printed = [program.stdout.readline() for _ in range(3)]
        os.kill(program.pid, signal.SIGINT)
        _, err = program.communicate(timeout=PATIENCE)
        assert (program.returncode, err) == (130, f"idiolect: interrupted; {place} holds 3 of 5 files\n")
    finally:
        if _alive(program.pid):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert before is None or output.read_text() == before
    kept = [json.loads(line)["file"] for line in place.read_text("utf-8").splitlines()]
    assert kept == [line.partition(":")[0] for line in printed] and [Path(each).stem for each in kept] == [
        "0",
        "1",
        "2",
    ]


def _transcribing(bundle: Bundle, folder: Path, custom: str, jobs: int) -> subprocess.Popen[str]:
    """A program with five recordings to decode, whose Python is changed so."""
    (folder / "sitecustomize.py").write_text(custom)
    recordings = folder / "recordings"
    recordings.mkdir()
    for seed in range(5):
        soundfile.write(recordings / f"{seed}.wav", noise(8_000, seed), 16_000)
    command = [sys.executable, "-m", "device_sdk.cli", "transcribe", "--bundle", str(bundle.path)]
    return subprocess.Popen(
        [*command, str(recordings), "--jobs", str(jobs), "--output", str(folder / "out.jsonl")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path.cwd())])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
