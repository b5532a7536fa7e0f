"""Fresh ground for one measurement: an empty database of either kind, with a fleet enrolled in it, and its server."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from math import ceil
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import insert

from device_sdk.checks import check_choice, check_interval
from device_sdk.errors import MissingExtraError
from server.devices.enrolment import device_id_of
from server.lab.load.devices import device_of
from server.lab.simulation.process import ServerProcess
from server.storage.database import Database
from server.storage.schema import devices

Kind = Literal["sqlite", "postgres"]
PROCESSES: dict[Kind, int] = {"sqlite": 1, "postgres": 2}
"""Of a server on a database of a kind: SQLite's file has one writer."""
_ALONE = ("--address-rate", "1e6:1e6", "--device-rate", "1e6:1e6", "--enrolment-rate", "1e6:1e6")
"""Nobody is kept out: the machine's own bound is looked for."""
_AT_ONCE = 5_000
"""Devices that are enrolled in one transaction."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """enrolled: devices in the database; signing: those of them that send requests. seconds: of every kind of request.
    members: devices of a round of secure aggregation, in groups of 20 at most. goal: reports of a round. served,
    direct: rounds over HTTP, and through the service layer. kills: of server processes."""

    enrolled: int = 100_000
    signing: int = 10_000
    seconds: int = 20
    members: int = 60
    goal: int = 400
    served: int = 300
    direct: int = 3_000
    kills: int = 50

    def shared(self, share: float) -> Sizes:
        """All of it times ``share``, in (0, 1], for a quick look. Raises ConfigurationError."""
        check_interval("share", share, "(0, 1]")
        least = {"enrolled": 16, "signing": 16, "members": 6, "goal": 8, "served": 4, "direct": 12}
        found = {each.name: ceil(share * getattr(self, each.name)) for each in fields(self)}
        return Sizes(**{name: max(least.get(name, 1), value) for name, value in found.items()})


@dataclass(frozen=True, slots=True)
class Ground:
    """kind, database: of what kind, and where (an SQLAlchemy URL). folder: for the server's files. secret: what the
    keys of its devices are drawn from. postgres: the process that all of PostgreSQL's belong to."""

    kind: Kind
    database: str
    folder: Path
    secret: bytes
    sizes: Sizes
    postgres: int | None = None

    def server(self, *options: str) -> ServerProcess:
        """Not started yet; it comes up at the same address every time."""
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        processes = PROCESSES[self.kind]
        place = None if self.kind == "sqlite" else self.database  # a file of the folder, as a server calls it
        many = () if processes == 1 else ("--processes", str(processes))
        return ServerProcess(self.folder, None, "--port", port, *_ALONE, *many, *options, where=place)


@contextmanager
def fresh(kind: Kind, folder: Path, sizes: Sizes) -> Iterator[Ground]:
    """``folder`` is emptied first, and left as it is at the end. Raises ConfigurationError for another kind, and
    MissingExtraError without the wheel that carries a PostgreSQL."""
    check_choice("database", kind, tuple(PROCESSES))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    secret = secrets.token_bytes(32)
    if kind == "sqlite":
        ground = Ground(kind, f"sqlite:///{(folder / 'server.db').absolute()}", folder, secret, sizes)
        _enrol(ground)
        yield ground
        return
    with _postgres() as (url, process):
        ground = Ground(kind, url, folder, secret, sizes, process)
        _enrol(ground)
        yield ground


def _enrol(ground: Ground) -> None:
    with closing(Database(ground.database)) as database:
        for first in range(0, ground.sizes.enrolled, _AT_ONCE):
            rows = []
            for number in range(first, min(first + _AT_ONCE, ground.sizes.enrolled)):
                key = device_of(ground.secret, number).key.public_key().public_bytes_raw()
                rows.append({"id": device_id_of(key), "public_key": key, "enrolled_at": 0.0, "enrolment_token": None})
            with database.write() as connection:
                connection.execute(insert(devices), rows)


@contextmanager
def _postgres() -> Iterator[tuple[str, int]]:
    """URL and process of a PostgreSQL with an empty database, both of which are gone at the end."""
    try:
        from pgserver.postgres_server import get_server
    except ModuleNotFoundError as error:
        told = "database: postgres needs the module 'pgserver'; run: pip install 'idiolect-server[bench,postgres]'"
        raise MissingExtraError(told) from error
    # Run by root, it works as a user of its own, who must get to its folder.
    folder = Path(tempfile.mkdtemp(prefix="idiolect-postgres-"))
    folder.chmod(0o755)
    server: Any = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server = get_server(folder / "data")
        process = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        yield str(server.get_uri()), process
    finally:
        if server is not None:
            server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def cpu_seconds(*roots: int | None) -> float | None:
    """Seconds of CPU that these processes, all that descend from them, and those of them that ended, have taken; None
    on systems without /proc."""
    if not Path("/proc/self/stat").exists():
        return None
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue  # it ended meanwhile
        number = int(entry.name)
        parents[number] = int(words[1])
        spent[number] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")

    def below(number: int) -> bool:
        while number in parents and number not in roots:
            number = parents[number]
        return number in roots

    return sum(seconds for number, seconds in spent.items() if below(number))
