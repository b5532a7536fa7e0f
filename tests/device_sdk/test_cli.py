"""The program: commands of several wheels, each loaded when it is called."""

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer

from device_sdk import DataError, MissingExtraError, cli
from device_sdk.benchmarks import Figure
from tests.architecture.sources import ROOT


def fails(path: str, count: int = 1) -> None:
    """A command that fails on purpose."""
    raise DataError(f"{path}: field {count}")


def needs_torch() -> None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


def broken() -> None:
    raise ModuleNotFoundError("No module named 'nonsense'", name="nonsense")


def leaves(code: int) -> None:
    raise typer.Exit(code)


group = typer.Typer()


@group.callback()
def _group() -> None:
    """A group."""


@group.command()
def hello(name: str) -> None:
    print(f"hello {name}")


def good() -> list[Figure]:
    return [Figure("speed", "frames/s", 20.0, "peer", 10.0, 1.0), Figure("size", "MB", 3.0)]


def slow() -> list[Figure]:
    return [Figure("speed", "frames/s", 1.0, "peer", 10.0, 1.0)]


def interrupted() -> None:
    raise KeyboardInterrupt


not_a_command = 3
SUMMARY = "The program: commands of several wheels, each loaded when it is called"


@pytest.fixture(autouse=True)
def entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        cli.COMMANDS: ("fails", "needs_torch", "broken", "leaves", "group", "not_a_command", "interrupted", "absent"),
        cli.BENCHMARKS: ("good", "slow"),
    }

    def points(group: str) -> list[EntryPoint]:
        found = [EntryPoint(name, f"{__name__}:{name}", group) for name in names[group] if name != "absent"]
        if group == cli.COMMANDS:
            found.append(EntryPoint("absent", "onnx_not_here.module:x", group))
            found.append(EntryPoint("bench", "device_sdk.commands.bench:command", group))
        return found

    monkeypatch.setattr(cli, "entry_points", points)


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        ([], 0, "Run the benchmark NAME", ""),  # nothing is imported for the list: "absent" is on it too
        ([], 0, "absent", ""),
        *((words, 0, "Usage: idiolect", "") for words in (["-h"], ["--help"], ["help"])),
        (["group", "-h"], 0, "Usage: idiolect group", ""),
        (["group", "hello", "-h"], 0, "Usage: idiolect group hello", ""),
        (["fails", "-h"], 0, "Usage: idiolect fails", ""),
        (["--version"], 0, "idiolect ", ""),
        (["group", "hello", "you"], 0, "hello you\n", ""),
        (["leaves", "7"], 7, "", ""),
        (["fails"], 2, "", "Usage: idiolect fails"),
        (["fails", "a.wav", "--count", "3"], 1, "", "idiolect: DataError: a.wav: field 3\n"),
        (["bench", "good", "--output", "/nowhere/x.json"], 1, "", "idiolect: DataError: /nowhere/x.json"),
        (["bench", "nothing"], 1, "", "expected one of good, slow"),
        (["bench", "slow"], 1, "speed", "miss their target"),
        (["needs_torch"], 1, "", "'idiolect-server[train]'"),
        (["serve"], 1, "", "pip install idiolect-server"),
        (["nonsense"], 1, "", "ConfigurationError: command: found"),
        (["not_a_command"], 1, "", "ConfigurationError: command: found"),
    ],
)
def test_command_lines(words: list[str], code: int, out: str, err: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == code
    said = capsys.readouterr()
    assert out in said.out and err in said.err
    if err.startswith("idiolect: "):
        assert said.err.count("\n") == 1 and not said.out, "an error raised on purpose is one line"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("gr", ["group"]), ("group ", ["hello"]), ("fails --c", ["--count"]), ("absent x", []), ("nonsense x", [])],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: list[str], monkeypatch, capsys) -> None:
    monkeypatch.setenv("_IDIOLECT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"idiolect {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    assert cli.main([]) == 0
    said = capsys.readouterr()
    assert [each for each in said.out.split() if each != "--help"] == offered and not said.err


def test_completion_for_the_whole_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash", raising=False)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert cli.main(["--show-completion"]) == 0
    assert "complete -o default -F _idiolect_completion idiolect" in capsys.readouterr().out
    assert cli.main(["group", "--show-completion"]) == 2, "of a part of it there is none"


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["interrupted"]) == 130
    monkeypatch.setattr(cli, "load", lambda point: interrupted())
    assert cli.main(["group"]) == 130, "while it is loaded"
    said = capsys.readouterr()
    assert not said.out and not said.err.strip()


def test_every_command_of_the_server_is_named_where_it_is_not_installed() -> None:
    points = tomllib.loads((ROOT / "server/pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert sorted(cli.SERVER_COMMANDS) == sorted(points[cli.COMMANDS])


def test_what_nobody_raised_on_purpose_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        cli.main(["broken"])
    with pytest.raises(ModuleNotFoundError):
        cli.load(EntryPoint("absent", "onnx_not_here.module:x", cli.COMMANDS))
    with pytest.raises(MissingExtraError, match="benchmark 'x' needs the module 'kenlm'"):
        raise cli.missing_extra("benchmark 'x'", ModuleNotFoundError(name="kenlm"))
    monkeypatch.setenv("IDIOLECT_DEBUG", "1")
    with pytest.raises(DataError):
        cli.main(["fails", "a.wav"])


def test_bench_prints_the_json_that_others_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["bench", "good", "--json", "--output", str(tmp_path / "figures.json")]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert set(report) == {"name", "machine", "figures"} and report["name"] == "good"
    keys = {"metric", "unit", "ours", "peer", "peer_value", "ratio", "target", "holds"}
    assert all(set(figure) == keys for figure in report["figures"])
    assert report["figures"][0]["ratio"] == 2.0 and report["figures"][0]["holds"] is True
    assert report["figures"][1]["holds"] is None


def test_bench_alone_lists_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["good", *SUMMARY.split()], ["slow", *SUMMARY.split()]]
    assert cli.main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"good": SUMMARY, "slow": SUMMARY}
