"""Cells of tables at any width."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table

from server.lab.simulation.progress import Shown


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, ["│ teacher │ 19.2 (-35: -42 to -28) │", "│ initial │                   29.4 │"]),
        (31, ["│ teacher │              19.2 │", "│         │ (-35: -42 to -28) │", "│ initial │              29.4 │"]),
    ],
)
def test_nothing_is_cut(width: int, expected: list[str]) -> None:
    table = Table()
    table.add_column("row")
    table.add_column("requests", justify="right")
    table.add_row("teacher", Shown("19.2", "(-35: -42 to -28)"))
    table.add_row("initial", Shown("29.4"))
    page = io.StringIO()
    Console(file=page, width=width).print(table)
    assert [line for line in page.getvalue().splitlines() if line.startswith("│")] == expected
