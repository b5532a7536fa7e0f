"""``idiolect backup`` and ``idiolect restore``: a server's whole state in one file, and back."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, deliver
from device_sdk.commands.secrets import holds_password, keep_from_process_list
from device_sdk.privacy.spending import stated

if TYPE_CHECKING:
    from server.backup import Backup, Track

Place = Annotated[
    str,
    typer.Option("--database", envvar="IDIOLECT_DATABASE", help="SQLite file, or a database URL.", show_envvar=True),
]
Blobs = Annotated[
    str | None,
    typer.Option(
        envvar="IDIOLECT_BLOBS",
        help="Folder of weights and raw deltas, or s3://bucket/prefix.  [default: the database's name + .blobs]",
    ),
]


def backup(
    file: Annotated[Path, typer.Argument(help="The archive to write, or to look at.")],
    database: Place = "idiolect-server.db",
    blobs: Blobs = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Write nothing: bring it back into a scratch place, and look at that.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Save a server's state, of one moment, while it goes on, and read it again.

    What devices sent to rounds under way is left out: a restore ends those rounds."""
    _keep_password(database)
    from server import backup as archives

    os.umask(0o077)
    if verify:
        _say(archives.verify(file, _track(as_json)), f"{file} can be restored", as_json)
        return
    with _open(database, blobs, existing=True) as (own, store):
        found = archives.save(own, store, file, _track(as_json))
    _say(found, f"saved to {file}", as_json)
    if found.missing and not as_json:
        typer.echo(f"{len(found.missing)} models had lost their weights to retention; they are saved without", err=True)


def restore(
    file: Annotated[Path, typer.Argument(help="An archive that `idiolect backup` wrote.")],
    database: Place = "idiolect-server.db",
    blobs: Blobs = None,
    rounds_since: Annotated[
        int | None,
        typer.Option(
            help="How many rounds the server may have closed after the backup; every device is charged for them."
            "  [default: as many as ever came in so long a time]",
            min=0,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring a saved state back into an empty database, of the same kind or another.

    Rounds that were under way end; what may have been charged after the backup is charged to every device."""
    _keep_password(database)
    from server.backup import restore as bring_back

    os.umask(0o077)
    with _open(database, blobs) as (own, store):
        found = bring_back(file, own, store, _track(as_json), rounds_since=rounds_since)
    _say(found, f"restored from {file}", as_json)
    if found.fence is not None and not as_json:
        fence = found.fence
        charged = ", ".join(f"{stream} epsilon {stated(epsilon)}" for stream, epsilon in fence.epsilon.items())
        typer.echo(
            f"every device is charged for {fence.rounds} rounds that may have come after the backup "
            f"({charged or 'nothing'}); {len(fence.abandoned)} rounds that were under way are abandoned"
        )


def _keep_password(database: str) -> None:
    keep_from_process_list({"--database": ("IDIOLECT_DATABASE", database if holds_password(database) else None)})


@contextmanager
def _open(database: str, blobs: str | None, *, existing: bool = False) -> Iterator[tuple[Any, Any]]:
    from server.settings import database_url, default_blobs
    from server.storage.database import Database
    from server.storage.objects import open_blobs

    own = Database(database_url(database), existing=existing)
    try:
        yield own, open_blobs(blobs or default_blobs(database), tidy=False, create=not existing)
    finally:
        own.close()


def _say(found: Backup, what: str, as_json: bool) -> None:
    if deliver(asdict(found), as_json, None):
        return
    rows = ", ".join(f"{count} {name}" for name, count in found.rows.items() if count)
    typer.echo(f"{what}: {rows or 'no rows'}; {found.blobs} blobs")


def _track(quiet: bool) -> Track:
    from rich.console import Console
    from rich.progress import track

    return partial(track, console=Console(stderr=True), disable=quiet or not sys.stderr.isatty())
