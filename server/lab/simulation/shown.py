"""Cells of tables that lose nothing on narrow screens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

__all__ = ["Shown"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure and what is said of it, beside each other where there is room, else one below the other."""

    figure: str
    remark: str = ""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(len(self.figure), len(self.remark)), len(self._line()))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        line = self._line()
        yield Text(line if len(line) <= options.max_width else f"{self.figure}\n{self.remark}", justify=options.justify)

    def _line(self) -> str:
        return f"{self.figure} {self.remark}".rstrip()
