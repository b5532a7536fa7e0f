"""Tables for people: what is to be copied out of one is whole, however narrow the terminal."""

import pytest
from rich.console import Console
from rich.table import Table

from device_sdk.commands.output import print_table

IDS = ("3f2a9c0d7be14f6f8a1d5b9e77c4a210", "9c1e0b7d44aa4c3bb1f0d2e6a5c8f913")
PATH = "/home/somebody/idiolect/server/weights/0123456789abcdef.safetensors"


@pytest.mark.parametrize("columns", ["10", "40", "80", "200"])
@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_no_word_is_broken(columns: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = Table(title=f"Round {IDS[0]}")
    for name in ("round", "of device", "deadline", "file"):
        table.add_column(name, overflow="fold")
    table.add_row(IDS[0], IDS[1], "2026-03-01 08:00:00", PATH)
    table.add_row("", "", "a note of several words that may go on in further lines", "")
    print_table(Console(force_terminal=terminal), table)
    lines = capsys.readouterr().out.splitlines()
    for word in (*IDS, PATH, "2026-03-01"):
        assert any(word in line for line in lines), word
    assert sum(IDS[0] in line for line in lines) == 2, "in the title too"


def test_a_table_uses_the_terminals_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table = Table("round", "note")
    table.add_row(IDS[0], "a note of several words that goes on in further lines")
    print_table(Console(), table)
    assert {len(line) for line in capsys.readouterr().out.splitlines()} <= set(range(50, 61))
