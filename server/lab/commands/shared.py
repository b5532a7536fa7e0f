"""What the lab's commands share: a progress bar, the command as it was given, extras."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from device_sdk.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["command_line", "needing_extra", "progress_bar"]


def command_line() -> str:
    """The command as it was given, for what is published with its outcome."""
    return shlex.join(["idiolect", *sys.argv[1:]])


@contextmanager
def needing_extra(name: str = "train") -> Iterator[None]:
    """Around imports: MissingExtraError, which names the extra, where one fails."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(f"{error}; run: pip install 'idiolect-server[{name}]'") from error


def progress_bar() -> Progress:
    """A bar on standard error that goes when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
