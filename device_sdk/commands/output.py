"""What commands write: files whole or not at all, their outcome as JSON where it is asked for, and tables."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
Output = Annotated[Path | None, typer.Option("--output", help="Also write the JSON to this file.")]


@contextmanager
def written_whole(path: Path) -> Iterator[IO[str]]:
    """A text file beside ``path`` that takes its place at the end; after an error ``path`` is as it was."""
    if path.exists() and not path.is_file():  # /dev/stdout, a named pipe: nothing to replace
        with path.open("w", encoding="utf-8") as out:
            yield out
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as out:
            yield out
        Path(name).chmod(usual_mode(path))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def usual_mode(path: Path) -> int:
    """Of what takes the place of a temporary file, which is one user's alone: as that which is there, or as any new."""
    umask = os.umask(0)
    os.umask(umask)
    return path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask


def check_writable(path: Path, *, folders: bool = False) -> None:
    """Before long work whose outcome goes there. Raises DataError naming the file; ``folders`` makes those that are
    missing."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder, expected the name of a file")
    if folders:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() or not path.exists():
        with _writing(path):
            tempfile.TemporaryFile(dir=path.parent).close()


def write_file(path: Path, text: str, *, folders: bool = False) -> None:
    """Whole or not at all; ``folders`` makes those that are missing. Raises DataError naming the file."""
    with _writing(path):
        if folders:
            path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as out:
            out.write(text)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror})") from error


def deliver(document: Mapping[str, object], as_json: bool, output: Path | None, *, folders: bool = False) -> bool:
    """Write a command's outcome as JSON to ``output``, where given, print it where asked to; whether it was printed.
    Raises DataError where the file cannot be written."""
    text = json.dumps(finite(document), indent=2)
    if output is not None:
        write_file(output, text + "\n", folders=folders)
    if as_json:
        print(text)
    return as_json


def finite(value: Any) -> Any:
    """As JSON can tell it, which has no such numbers: nothing for what is no number, a word for infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity"
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value


def print_table(console: Console, table: Table) -> None:
    """Print a table, from which ids, paths and figures are copied, so that no word is ever broken: as narrow as
    the console, but no narrower than its longest words. Where these do not fit, its lines are longer."""
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
