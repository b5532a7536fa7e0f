"""The README's own code, run as it stands there, in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from device_sdk.audio import SAMPLE_AUDIO
from device_sdk.bundle import Bundle
from device_sdk.cli import main
from device_sdk.commands.device import app as device
from device_sdk.errors import BundleError
from tests.architecture.sources import ROOT


def _packaged() -> bool:
    try:
        Bundle.open()
    except BundleError:
        return False
    return True


@pytest.mark.skipif(not _packaged(), reason="no default bundle in this tree")
@pytest.mark.parametrize(
    ("example", "printed"), [(0, ("large mocha", "LearningReport")), (1, ("0.0 s: can",)), (2, ()), (3, (".",))]
)
def test_the_lines_that_embed_the_sdk(tmp_path: Path, example: int, printed: tuple[str, ...]) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert len(code) == 4
    done = subprocess.run(
        [sys.executable, "-c", code[example]], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert all(text in done.stdout for text in printed), done.stdout


@pytest.mark.skipif(not _packaged(), reason="no default bundle in this tree")
def test_the_first_command_hears_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    page = (ROOT / "README.md").read_text("utf-8")
    (shown,) = re.findall(r"\$ idiolect (transcribe [^\n]*)\n(.*?)```", page, re.DOTALL)
    command, output = shown
    assert main(command.split()) == 0
    printed = capsys.readouterr()
    for line in output.splitlines():
        if " s  " in line:
            assert line in printed.err, "a partial"
        elif line.startswith("│ 1 "):
            assert line.split("│")[8].strip() in printed.out


@pytest.mark.skipif(not _packaged(), reason="no default bundle in this tree")
def test_a_round_by_commands_alone_goes_as_the_readme_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (shown,) = re.findall(r"```sh\n(export IDIOLECT_STATE.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
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


def test_every_link_leads_somewhere() -> None:
    for page in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8")):
            assert (ROOT / target).exists(), f"{page}: {target} does not exist"


@pytest.mark.slow
def test_the_lines_with_a_lexicon_pass_strict_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    written = [each for each in code if "SlotLexicon(" in each]
    for number, each in enumerate(written):
        (tmp_path / f"app_{number}.py").write_text(each, "utf-8")
    strictly = ("--strict", "--config-file=", "--follow-imports=silent", "--disable-error-code=import-untyped")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *strictly, *sorted(map(str, tmp_path.glob("*.py")))],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert len(written) == 2 and done.returncode == 0, done.stdout + done.stderr
