"""What the lab's commands share: a progress bar, the command as it was given, extras."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from device_sdk.errors import ConfigurationError, MissingExtraError

if TYPE_CHECKING:
    from rich.progress import Progress

Number = TypeVar("Number", int, float)


def command_line() -> str:
    """The command as it was given, for what is published with its outcome."""
    return shlex.join(["idiolect", *sys.argv[1:]])


def read_numbers(option: str, given: str, kind: Callable[[str], Number], expected: str) -> list[Number]:
    """Numbers with commas between them. ConfigurationError: others were given."""
    try:
        return [kind(value) for value in given.split(",")]
    except ValueError as error:
        raise ConfigurationError(f"{option}: found {given!r}, expected {expected}") from error


@contextmanager
def needing_extra() -> Iterator[None]:
    """Around imports: MissingExtraError, which names the extra ``train``, where one fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{error}; run: pip install 'idiolect-server[train]'") from error


def progress_bar() -> Progress:
    """A bar on standard error that goes when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
