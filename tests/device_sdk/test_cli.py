"""The program: commands of several wheels, each loaded when it is called."""

from __future__ import annotations

import json
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer

from device_sdk import cli
from device_sdk.benchmarks import Figure
from device_sdk.errors import DataError, MissingExtraError
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


def test_help_lists_commands_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    listed = capsys.readouterr().out
    assert "bench" in listed and "Runs a benchmark" in listed and "absent" in listed


@pytest.mark.parametrize(
    "words", [["-h"], ["--help"], ["help"], ["group", "-h"], ["group", "hello", "-h"], ["fails", "-h"]]
)
def test_h_is_help_everywhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 0
    assert f"Usage: {' '.join(['idiolect', *(word for word in words[:-1])])}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("gr", ["group"]), ("group ", ["hello"]), ("fails --c", ["--count"]), ("absent x", []), ("nonsense x", [])],
)
def test_the_shell_completes_commands_and_options(
    typed: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"idiolect {typed}"
    for name, value in {
        "_IDIOLECT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }.items():
        monkeypatch.setenv(name, value)
    assert cli.main([]) == 0
    said = capsys.readouterr()
    assert [each for each in said.out.split() if each != "--help"] == offered and not said.err


def test_completion_is_installed_for_the_whole_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash", raising=False)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash")
    assert cli.main(["--show-completion"]) == 0
    assert "complete -o default -F _idiolect_completion idiolect" in capsys.readouterr().out
    assert cli.main(["group", "--show-completion"]) == 2, "of a part of it there is none"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("idiolect ")


def test_an_error_raised_on_purpose_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fails", "a.wav", "--count", "3"]) == 1
    said = capsys.readouterr()
    assert said.err == "idiolect: DataError: a.wav: field 3\n" and not said.out


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "good", "--output", str(tmp_path / "none" / "x.json")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("idiolect: DataError: ") and "x.json" in said and said.count("\n") == 1


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["interrupted"]) == 130
    monkeypatch.setattr(cli, "load", lambda point: interrupted())
    assert cli.main(["group"]) == 130, "while it is loaded"
    said = capsys.readouterr()
    assert not said.out and not said.err.strip()


def test_the_traceback_stays_for_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDIOLECT_DEBUG", "1")
    with pytest.raises(DataError):
        cli.main(["fails", "a.wav"])


@pytest.mark.parametrize(
    ("words", "extra"), [(["needs_torch"], "'idiolect-server[train]'"), (["serve"], "pip install idiolect-server")]
)
def test_a_missing_extra_is_named(words: list[str], extra: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    assert extra in capsys.readouterr().err


def test_every_command_of_the_server_is_named_where_it_is_not_installed() -> None:
    points = tomllib.loads((ROOT / "server/pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert sorted(cli.SERVER_COMMANDS) == sorted(points[cli.COMMANDS])


def test_a_missing_module_of_no_extra_is_a_bug_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ModuleNotFoundError, match="nonsense"):
        cli.main(["broken"])
    with pytest.raises(ModuleNotFoundError):
        cli.load(EntryPoint("absent", "onnx_not_here.module:x", cli.COMMANDS))
    with pytest.raises(MissingExtraError, match="benchmark 'x' needs the module 'kenlm'"):
        raise cli.missing_extra("benchmark 'x'", ModuleNotFoundError(name="kenlm"))


@pytest.mark.parametrize("words", [["nonsense"], ["not_a_command"]])
def test_what_is_no_command_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    assert "ConfigurationError: command: found" in capsys.readouterr().err


def test_groups_exit_codes_and_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["group", "hello", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert cli.main(["leaves", "7"]) == 7
    assert cli.main(["fails"]) == 2  # an argument is missing
    assert "Usage: idiolect fails" in capsys.readouterr().err


def test_bench_prints_the_json_that_others_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["bench", "good", "--json", "--output", str(tmp_path / "figures.json")]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report == json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert set(report) == {"name", "machine", "figures"} and report["name"] == "good"
    keys = {"metric", "unit", "ours", "peer", "peer_value", "ratio", "target", "holds"}
    assert all(set(figure) == keys for figure in report["figures"])
    assert report["figures"][0]["ratio"] == 2.0 and report["figures"][0]["holds"] is True
    assert report["figures"][1]["holds"] is None


def test_bench_prints_a_table_and_says_what_misses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "slow"]) == 0
    said = capsys.readouterr()
    assert "speed" in said.out and "miss their target" in said.err


def test_bench_alone_lists_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [["good", *SUMMARY.split()], ["slow", *SUMMARY.split()]]
    assert cli.main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"good": SUMMARY, "slow": SUMMARY}


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "nothing"]) == 1
    assert "expected one of good, slow" in capsys.readouterr().err


def test_benchmarks_are_listed_by_name() -> None:
    assert list(cli.available(cli.BENCHMARKS)) == ["good", "slow"]
