"""``python -m tests.learning SPEECH --json``: whether devices still learn, in simulations under several seeds.

SPEECH: ``made`` (the demonstration's people), ``barista`` (coffee orders) or ``librispeech`` (chapters, in order), the
recordings in the folder that ``IDIOLECT_DATA`` names. Exit status 1 when a line does not hold. ``--keep FOLDER`` keeps
every seed's runs and goes on from there."""

import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from device_sdk.commands.output import AsJson, deliver
from server.lab.simulation import Shape, SimulationSettings, simulate
from server.lab.simulation.outcomes import Run, against_frozen, figures
from server.lab.simulation.progress import progress

Document = dict[str, Any]
ROUNDS = 3


def _below(kind: str, part: str) -> Callable[[Document], tuple[float, bool]]:
    """Points that *both* makes more errors than *frozen*; whether the interval lies below zero."""

    def line(found: Document) -> tuple[float, bool]:
        points = found["against_frozen"]["both"][kind][part]["absolute"]
        return 100 * points["mean"], points["high"] < 0

    return line


def _begin(found: Document) -> tuple[float, bool]:
    mean = 100 * found["conditions"]["frozen"]["wer"]["all"]["mean"]
    return mean, mean < 40


def _fifth(found: Document) -> tuple[float, bool]:
    percent = 100 * found["against_frozen"]["both"]["wer"]["last"]["relative"]["mean"]
    return percent, percent <= -20


def _half(found: Document) -> tuple[float, bool]:
    both, supervised = (
        found["against_frozen"][name]["wer"]["later"]["absolute"]["mean"] for name in ("both", "supervised")
    )
    return 100 * both / supervised, supervised < 0 and both / supervised >= 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """seeds: of the simulations. shape: how large they are. lines: name -> (figure, whether it holds)."""

    seeds: int
    shape: Shape
    lines: dict[str, Callable[[Document], tuple[float, bool]]]


CHECKS = {
    "made": Check(
        5,
        Shape(ROUNDS),
        {
            "word error as shipped, under 40 %": _begin,
            "change of word error in the last round, at most -20 %": _fifth,
            "points of word error in the last round, interval below 0": _below("wer", "last"),
        },
    ),
    "barista": Check(
        6,
        Shape(ROUNDS),
        {
            "points of slot error, interval below 0": _below("slot_error", "all"),
            "points of word error, interval below 0": _below("wer", "all"),
        },
    ),
    "librispeech": Check(
        6,
        Shape(ROUNDS, each=12),
        {
            "points of word error in later rounds, interval below 0": _below("wer", "later"),
            "share of the supervised yardstick's gain, at least 50 %": _half,
        },
    ),
}


def main(
    speech: Annotated[str, typer.Argument(help=f"One of {', '.join(CHECKS)}.")],
    bundle: Annotated[Path | None, typer.Option(help="Folder or zip of a bundle; the packaged one if none.")] = None,
    keep: Annotated[Path | None, typer.Option(help="Folder of the runs so far.")] = None,
    as_json: AsJson = False,
) -> None:
    if speech not in CHECKS:
        raise typer.BadParameter(f"found {speech!r}, expected one of {', '.join(CHECKS)}")
    check, runs = CHECKS[speech], list[Run]()
    source = "made" if speech == "made" else f"{speech}:{Path(os.environ['IDIOLECT_DATA']) / speech}"
    with TemporaryDirectory() as temporary, progress() as watch:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(1, check.seeds + 1):
            path = folder / f"{speech}-{seed}.pickle"
            if not path.exists():
                settings = SimulationSettings(source, str(bundle) if bundle else None, (seed,), check.shape)
                path.with_suffix(".part").write_bytes(pickle.dumps(simulate(settings, watch)[1]))
                path.with_suffix(".part").replace(path)
            runs += pickle.loads(path.read_bytes())
    found: Document = {"conditions": figures(runs, ROUNDS), "against_frozen": against_frozen(runs, ROUNDS)}
    named = {name: line(found) for name, line in check.lines.items()}
    lines = [{"name": name, "found": round(value, 2), "holds": holds} for name, (value, holds) in named.items()]
    if not deliver({"lines": lines, **found}, as_json, None):
        table = Table("line", "found", "", title=f"{speech}, {check.seeds} seeds")
        for line in lines:
            table.add_row(line["name"], f"{line['found']:.1f}", "" if line["holds"] else "misses")
        Console().print(table)
    raise typer.Exit(not all(line["holds"] for line in lines))


if __name__ == "__main__":
    typer.run(main)
