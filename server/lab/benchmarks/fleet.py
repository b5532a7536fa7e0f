"""What one machine carries: 100,000 devices in its database, 10,000 that sign, kills, and thousands of rounds.

Rates are those of the whole machine with the devices on it, and of what else it does: lower bounds. Each part runs on
a database of its own; what is done is kept in ``folder``, where the same command goes on."""

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import cast

from device_sdk.benchmarks import Figure
from device_sdk.checks import check_choice
from device_sdk.commands.output import write_file
from device_sdk.errors import StateError
from server.lab.load.ground import Ground, Kind, Sizes, fresh
from server.lab.load.kills import kills
from server.lab.load.rates import rates
from server.lab.load.series import direct, served
from server.lab.simulation.progress import Tell, progress

Part = Callable[[Ground, Tell], list[Figure]]
_OF_BOTH: dict[str, Part] = {"requests": rates, "kills": kills, "served": served}
PARTS: dict[Kind, dict[str, Part]] = {"sqlite": {**_OF_BOTH, "direct": direct}, "postgres": _OF_BOTH}
"""Pages can be counted in an SQLite file."""


def benchmark(database: str | None = None, share: float = 1.0, folder: Path | None = None) -> list[Figure]:
    """Figures of every part on both kinds of database. database: ``sqlite`` or ``postgres`` alone. share: of the whole
    size. folder: where finished parts are kept; a temporary one by default. Raises StateError where the folder holds
    parts of another size."""
    if database is not None:
        check_choice("database", database, tuple(PARTS))
    kinds = [cast("Kind", database)] if database is not None else list(PARTS)
    sizes = Sizes().shared(share)
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="idiolect-fleet-") as place:
            return _figures(kinds, sizes, Path(place))
    return _figures(kinds, sizes, folder)


def _figures(kinds: list[Kind], sizes: Sizes, folder: Path) -> list[Figure]:
    found: list[Figure] = []
    with progress() as tell:
        for kind in kinds:
            for name, part in PARTS[kind].items():
                done = folder / f"{kind}.{name}.json"
                if not done.exists():
                    with fresh(kind, folder / f"{kind}.{name}", sizes) as ground:
                        figures = [asdict(figure) for figure in part(ground, tell)]
                    kept = {"sizes": asdict(sizes), "figures": figures}
                    write_file(done, json.dumps(kept, indent=2) + "\n", folders=True)
                    shutil.rmtree(folder / f"{kind}.{name}", ignore_errors=True)
                found += _read(done, sizes)
    return found


def _read(path: Path, sizes: Sizes) -> list[Figure]:
    try:
        kept = json.loads(path.read_text("utf-8"))
        measured, figures = kept["sizes"], [Figure(**each) for each in kept["figures"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path}: found {error}, expected the figures of a finished part; delete it") from error
    if measured != asdict(sizes):
        raise StateError(f"{path}: found figures of {measured}, expected {asdict(sizes)}; give another --folder")
    return figures
