"""The code in the README and in the pages under docs/: run as it stands there, in an empty folder, or checked against
what it is for. A block that cannot be run says why: ``sh unrun="why"``."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from device_sdk.audio import SAMPLE_AUDIO
from device_sdk.cli import main
from device_sdk.commands.device import app as device
from device_sdk.listen import answers
from device_sdk.wire import messages
from server.commands.updates import app as updates
from server.plans.round_file import read_round
from tests.architecture.sources import ROOT
from tests.pages import WITH_A_SERVER, Block, block, blocks, every_block, fenced
from tests.shell import commands, misuse
from tests.speech import packaged

PRINTED = {
    "session.feed(audio": ("large mocha", "LearningReport"),
    "async def microphone": ("0.0 s: can",),
    "device.vocabulary.add": ("niamh", "caoimhe"),
    "device.withdraw(": ("marginals=False", "1 utterance"),
    "signed_digest(": ("idiolect-v1", "/v1/check-in"),
}
"""What a block of Python holds -> what it prints."""
RUN = {"import sherpa model", "idiolect device learn", "idiolect serve --ready-file", "idiolect updates init"}
"""What the blocks hold that are run below, and, of a server and its devices, in tests/architecture/test_wheels.py."""
UNRUN = 5
"""Blocks that cannot be run. Fewer is better."""
DRAWN = {"console", "text"}
"""What a program printed, and drawings."""
PYTHON = [each for each in every_block() if each.language == "python" and WITH_A_SERVER not in each.text]
SHELL = [each for each in every_block() if each.language == "sh"]


@pytest.fixture(autouse=True)
def _bundle() -> None:
    packaged()


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    known = DRAWN | {"json", "python", "sh", "toml"}
    assert not [str(each) for each in every_block() if each.language not in known]
    assert not [str(each) for each in every_block() if each.notes.keys() - {"message", "unrun"}]


def test_few_blocks_cannot_be_run_and_they_say_why() -> None:
    unrun = [each for each in every_block() if "unrun" in each.notes]
    assert len(unrun) == UNRUN and {each.language for each in unrun} == {"sh"}
    assert all(len(each.notes["unrun"].split()) > 2 for each in unrun)


@pytest.mark.parametrize("each", PYTHON, ids=str)
def test_python_runs_as_it_stands_there(tmp_path: Path, each: Block) -> None:
    done = subprocess.run(
        [sys.executable, "-c", each.text], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{each}: {done.stderr}"
    for holds, printed in PRINTED.items():
        assert holds not in each.text or all(text in done.stdout for text in printed), f"{each}: {done.stdout}"


def test_what_is_printed_is_looked_at() -> None:
    assert all(block("python", holds) for holds in PRINTED)


@pytest.mark.parametrize("each", SHELL, ids=str)
def test_a_shell_can_read_every_command_and_its_program_takes_it(each: Block) -> None:
    read = subprocess.run(["bash", "-n"], input=each.text, capture_output=True, text=True, check=False)
    assert read.returncode == 0 and not read.stderr, f"{each}: {read.stderr}"
    assert list(commands(each.text)), f"{each}: no command"
    wrong = [found for words in commands(each.text) if (found := misuse(words)) is not None]
    assert not wrong, f"{each}: {wrong}"


def test_every_shell_block_is_run_or_says_why_not() -> None:
    for each in SHELL:
        looked_up = {words[0] for words in commands(each.text)} <= {"make", "pip"}
        ways = sum(holds in each.text for holds in RUN) + ("unrun" in each.notes) + looked_up
        assert ways == 1, f"{each}: is run in no test, or in two ways"
    assert all(block("sh", holds) for holds in RUN)


@pytest.mark.parametrize("each", [each for each in every_block() if each.language == "toml"], ids=str)
def test_toml_is_a_round_that_a_server_takes(tmp_path: Path, each: Block) -> None:
    (tmp_path / "round.toml").write_text(each.text, "utf-8")
    settings = read_round(tmp_path / "round.toml")
    assert settings.streams and settings.rounds > 1


@pytest.mark.parametrize("each", [each for each in every_block() if each.language == "json"], ids=str)
def test_json_is_the_message_that_it_says(each: Block) -> None:
    if (name := each.notes["message"]) != "feedback":
        message = getattr(messages, name).model_validate_json(each.text)
        assert json.loads(each.text).keys() <= message.model_dump().keys()
        return
    for line in each.text.splitlines():
        given = json.loads(line)
        assert given.pop("id") and (isinstance(given.get("edited"), str) or answers.signal(given))


def test_a_model_is_imported_by_the_three_commands(tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text("can i have a large mocha please\nturn on the light\n", "utf-8")
    lines = [line for line in block("sh", "import sherpa model").splitlines() if line.startswith("idiolect ")]
    assert len(lines) == 3
    wide: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "COLUMNS": "200"}}
    for line in lines:
        command = [sys.executable, "-m", "device_sdk.cli", *shlex.split(line, comments=True)[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **wide)
        assert done.returncode == 0, done.stderr
    assert "can i have a large mocha please" in done.stdout, "the text, whenever its last word came"


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


def test_keys_are_made_and_changed_by_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tuf")
    monkeypatch.chdir(tmp_path)
    said = ""
    lines = [words for words in commands(block("sh", "idiolect updates init")) if words[1] == "updates"]
    for words in lines:
        done = CliRunner().invoke(updates, words[2:])
        assert done.exit_code == 0, done.output
        said += done.output
    assert "idiolect serve --updates keys/server" in said and "root 2 is signed" in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("idiolect rounds opne round.toml", "no command opne"),
        ("idiolect rounds open --epsilon 1", "--epsilon"),
        ("idiolect transcribe --sample --nbest two", "valid integer"),
        ("idiolect device correct 0123", "text is missing"),
        ("X=$(idiolect enrolment add phones --uses 5 --minutes 3) && sleep 1", "--minutes"),
        ("pip install 'idiolect[microphone]'", "microphone"),
        ("make love", "love"),
        ("python -m examples.nobody_1999", "examples.nobody_1999"),
        ("curl https://idiolect.example", "curl"),
    ],
)
def test_a_command_that_is_wrong_is_seen(text: str, problem: str) -> None:
    (found,) = [found for words in commands(text) if (found := misuse(words)) is not None]
    assert problem in found


def test_a_block_is_read_with_its_line_and_what_its_fence_says() -> None:
    text = 'a\n```sh unrun="needs an hour"\nidiolect x\n```\n````text\n```\n````\n'
    first, second = fenced(text, "page.md")
    assert (first.line, first.language, first.notes) == (2, "sh", {"unrun": "needs an hour"})
    assert first.text == "idiolect x\n" and second.text == "```\n"
    with pytest.raises(ValueError, match=r"page\.md:1: the block is not closed"):
        list(fenced("```sh\n", "page.md"))
    with pytest.raises(ValueError, match=r"page\.md:1: found 'what'"):
        list(fenced("```sh what\n```\n", "page.md"))


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
