"""Bars on standard error while an experiment runs, and cells of its tables."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

Tell = Callable[[str, int, int], None]
"""(what is being done, done, all)."""


@contextmanager
def progress() -> Iterator[Tell]:
    """A bar for each thing that is reported."""
    columns = (TextColumn("{task.description:<34}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield tell


@dataclass(frozen=True, slots=True)
class Shown:
    """A figure and what is said of it, beside each other where there is room, else one below the other."""

    figure: str
    remark: str = ""

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(max(len(self.figure), len(self.remark)), len(f"{self.figure} {self.remark}".rstrip()))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        line = f"{self.figure} {self.remark}".rstrip()
        yield Text(line if len(line) <= options.max_width else f"{self.figure}\n{self.remark}", justify=options.justify)
