"""The code in the README and in the pages under docs/, run as it stands there, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_sdk.audio import SAMPLE_AUDIO
from device_sdk.cli import main
from device_sdk.commands.device import app as device
from tests.architecture.sources import ROOT
from tests.pages import block, blocks
from tests.speech import packaged

EXAMPLES = {
    "session.feed(audio": ("large mocha", "LearningReport"),
    "async def microphone": ("0.0 s: can",),
    "device.vocabulary.add": ("niamh", "caoimhe"),
    "Hotword(": (),
    "reinforce_weight": (".",),
}
"""What a block of Python holds -> what it prints."""
WITH_A_SERVER = "from openai import"
"""What a block holds that is run in :mod:`tests.device_sdk.listen.test_clients`."""


@pytest.fixture(autouse=True)
def _bundle() -> None:
    packaged()


@pytest.mark.parametrize(("holds", "printed"), EXAMPLES.items())
def test_the_lines_that_embed_the_sdk(tmp_path: Path, holds: str, printed: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", block("python", holds)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in printed), done.stdout


def test_every_block_of_python_is_one_that_runs() -> None:
    assert sorted(blocks("python")) == sorted(block("python", holds) for holds in (*EXAMPLES, WITH_A_SERVER))


def test_a_model_is_imported_by_the_three_commands(tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("can i have a large mocha please\nturn on the light\n", "utf-8")
    lines = [line for line in block("sh", "import sherpa model").splitlines() if line.startswith("idiolect ")]
    assert len(lines) == 3
    for line in lines:
        command = [sys.executable, "-m", "device_sdk.cli", *shlex.split(line, comments=True)[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
    assert "can i have a large mocha please" in done.stderr


def test_the_first_command_hears_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    command, output = block("console", "$ idiolect transcribe").split("\n", 1)
    assert main(command.split()[2:]) == 0
    printed = capsys.readouterr()
    for line in output.splitlines():
        if " s  " in line:
            assert line in printed.err, "a partial"
        elif line.startswith("│ 1 "):
            assert line.split("│")[-2].strip() in printed.out


def test_a_round_by_commands_alone_goes_as_the_page_shows_it(tmp_path: Path, monkeypatch, capsys) -> None:
    shown = block("sh", "idiolect device learn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "order.wav").write_bytes(SAMPLE_AUDIO.read_bytes())
    heard, said = "", ""
    for line in shown.splitlines():
        words = [heard if word == "UTTERANCE" else word for word in shlex.split(line, comments=True)]
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
        elif words[1] == "transcribe":
            assert main(words[1:]) == 0
            (heard,) = re.findall(r"\b[0-9a-f]{32}\b", capsys.readouterr().out)
        elif words[2] != "check-in":
            done = CliRunner().invoke(device, words[2:])
            assert done.exit_code == 0, done.output
            said += done.stdout
    assert "on 1 utterance in" in said and "sending model changes" in said


@pytest.mark.slow
def test_the_lines_with_a_lexicon_pass_strict_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    written = [each for each in blocks("python") if "SlotLexicon(" in each]
    for number, each in enumerate(written):
        (tmp_path / f"app_{number}.py").write_text(each, "utf-8")
    strictly = ("--strict", "--config-file=", "--follow-imports=silent", "--disable-error-code=import-untyped")
    command = [sys.executable, "-m", "mypy", *strictly, *sorted(map(str, tmp_path.glob("*.py")))]
    own = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, timeout=600, check=False)
    assert len(written) == 2 and done.returncode == 0, done.stdout + done.stderr
