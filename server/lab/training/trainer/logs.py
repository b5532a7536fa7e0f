"""What a run tells: a log with one JSON line a record, and a progress bar."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Observer(Protocol):
    """Is told of every step: its number, the share of the budget used, and named figures."""

    def __call__(self, step: int, progress: float, figures: Mapping[str, float]) -> None: ...


@contextmanager
def progress_bar(show: bool = True) -> Iterator[Observer]:
    """An observer that draws a bar on the terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), disable=not show) as bar:
        task = bar.add_task("training", total=1.0)

        def observe(step: int, progress: float, figures: Mapping[str, float]) -> None:
            losses = " ".join(f"{name} {value:.3f}" for name, value in figures.items() if name.startswith("loss/"))
            bar.update(task, completed=progress, description=f"step {step} {losses.replace('loss/', '')}")

        yield observe


def append_log(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.strftime("%H:%M:%S"), **record}) + "\n")
