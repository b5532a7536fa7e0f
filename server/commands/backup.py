"""``idiolect backup`` and ``idiolect restore``: a server's whole state in one file, and back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from server.backup import Backup

__all__ = ["backup", "restore"]

Place = Annotated[str, typer.Option("--database", help="SQLite file, or a database URL.")]
Blobs = Annotated[
    str | None,
    typer.Option(
        help="Folder of weights and raw deltas, or s3://bucket/prefix.  [default: the database's name + .blobs]"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]


def backup(
    file: Annotated[Path, typer.Argument(help="The archive to write.")],
    database: Place = "idiolect-server.db",
    blobs: Blobs = None,
    as_json: AsJson = False,
) -> None:
    """Save a server's whole state, of one moment, while it goes on."""
    from server.backup import save

    with _opened(database, blobs) as (own, store), _progress(as_json) as watch:
        found = save(own, store, file, watch)
    _say(found, f"saved to {file}", as_json)
    if found.missing and not as_json:
        typer.echo(f"{len(found.missing)} models had lost their weights to retention; they are saved without", err=True)


def restore(
    file: Annotated[Path, typer.Argument(help="An archive that `idiolect backup` wrote.")],
    database: Place = "idiolect-server.db",
    blobs: Blobs = None,
    as_json: AsJson = False,
) -> None:
    """Bring a saved state back into an empty database, of the same kind or another.

    What was charged to the privacy ledger after the backup is forgotten: restore the newest one.
    """
    from server.backup import restore as bring_back

    with _opened(database, blobs) as (own, store), _progress(as_json) as watch:
        found = bring_back(file, own, store, watch)
    _say(found, f"restored from {file}", as_json)


@contextmanager
def _opened(database: str, blobs: str | None) -> Iterator[tuple[Any, Any]]:
    from server.settings import database_url, default_blobs
    from server.storage.blobs import open_blobs
    from server.storage.database import Database

    own = Database(database_url(database))
    try:
        yield own, open_blobs(blobs or default_blobs(database), tidy=False)
    finally:
        own.close()


def _say(found: Backup, what: str, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
        return
    rows = ", ".join(f"{count} {name}" for name, count in found.rows.items() if count)
    typer.echo(f"{what}: {rows or 'no rows'}; {found.blobs} blobs")


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty()) as bars:
        tasks: dict[str, Any] = {}

        def watch(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield watch
