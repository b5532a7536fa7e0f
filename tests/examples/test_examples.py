"""The examples, run as a reader would run them."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from examples import fleet
from server.lab.corpora.voices import Voice, speak
from server.lab.simulation import Shape, SimulationSettings
from server.lab.simulation.outcomes import CONDITIONS
from tests.architecture.sources import ROOT

ASSISTANT = ROOT / "examples" / "assistant.py"


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import soundfile

    path = tmp_path_factory.mktemp("speech") / "command.wav"
    soundfile.write(path, speak("turn on the light in the kitchen", Voice("en-us", "Alex")), 16_000)
    return path


def run(bundle: Bundle, state: Path, *files: object) -> subprocess.CompletedProcess[str]:
    """The assistant on files, with nobody to answer."""
    command = [sys.executable, ASSISTANT, *files, "--bundle", bundle.path, "--state", state]
    nobody = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 120}
    return subprocess.run(list(map(str, command)), cwd=state.parent, check=False, **nobody)  # type: ignore[call-overload, no-any-return]


def test_the_assistant_hears_a_file_or_says_what_is_wrong(tiny_bundle: Bundle, spoken: Path, tmp_path: Path) -> None:
    result = run(tiny_bundle, tmp_path / "state", spoken, spoken)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("heard: ") == 2 and "2 utterances" in result.stdout
    assert (tmp_path / "state" / "key").stat().st_mode & 0o077 == 0
    result = run(tiny_bundle, tmp_path / "state", "no.wav")
    assert result.returncode == 1
    assert result.stderr.startswith("assistant: no.wav: no such file") and "Traceback" not in result.stderr


def test_the_assistant_learns_from_an_answer(tiny_bundle: Bundle, spoken: Path, tmp_path: Path) -> None:
    command = [sys.executable, ASSISTANT, spoken, "--bundle", tiny_bundle.path, "--state", tmp_path / "state"]
    terminal, child = pty.openpty()
    with subprocess.Popen(list(map(str, command)), stdin=child, stdout=subprocess.PIPE, text=True) as process:
        os.close(child)
        os.write(terminal, b"turn on the light\n")
        said, _ = process.communicate(timeout=120)
    os.close(terminal)
    assert process.returncode == 0 and "learned in" in said
    steps = re.search(r"(\d+) learning steps", said)
    assert steps is not None and 4 <= int(steps[1]) <= 16  # of an utterance that was corrected


def test_a_fleet_learns_and_says_what_it_cost(tiny_bundle: Bundle, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    fleet.main(SimulationSettings(bundle=str(tiny_bundle.path), shape=Shape(1, 1, 1, 1, 1)))
    said = capsys.readouterr().out
    assert all(f"\n{condition.name}" in said for condition in CONDITIONS)
    assert "marginals: a device has shared epsilon" in said and "deltas: a device has shared epsilon" in said
    assert "<svg" in Path("report.html").read_text("utf-8")
