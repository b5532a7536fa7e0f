"""Tables for people. Ids, paths and figures are copied out of them, so no word is ever broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["print_table"]


def print_table(console: Console, table: Table) -> None:
    """Print a table as narrow as the console, but no narrower than its longest words: where these do not fit beside
    each other, its lines are longer than the console's."""
    from rich.measure import Measurement

    unbounded = console.options.update(width=1 << 16)

    def widths(*shown: RenderableType) -> tuple[int, int]:
        """Of the longest word and of the longest line."""
        measured = [Measurement.get(console, unbounded, each) for each in shown]
        return max(each.minimum for each in measured), max(each.maximum for each in measured)

    least = 1
    for column in table.columns:
        word, line = widths(column.header, *column.cells)
        column.min_width, column.no_wrap = max(column.min_width or 0, word), column.no_wrap or word == line
        least += column.min_width + 3  # a space on each side, and a line
    if table.title:
        least = max(least, widths(table.title)[0])
    if least > console.width:
        table.width = least
    console.print(table, crop=False)
