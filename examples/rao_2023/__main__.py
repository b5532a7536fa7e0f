"""The tables of Rao et al. 2023: devices learn a new domain without transcripts, and how much of supervision that is
worth.

    IDIOLECT_DATA=... python -m examples.rao_2023 --work runs/rao_2023 --seeds 3

A base model learns general sentences, spoken in quiet places. Then cohorts of devices, whose people make requests over
a narrow band, learn in FedSGD rounds with a server's Adam: from true transcripts (the oracle), from a teacher that
stays or follows by an exponential moving average, and from weak feedback. Tests hear other sentences and other people
than any stage has. Everything made on the way (base model, speech, finished rows) is kept in the work folder, so a
second call goes on where the first stopped. ``--real`` adds real voices (``barista``) on real devices and a server.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from device_sdk.commands.output import deliver, write_file
from examples.rao_2023.experiment import Experiment, Scale, run_rows
from examples.rao_2023.tables import bar_chart, judged, remarks, summary, table

CONSOLE = Console(stderr=True)


def main(
    work: Annotated[Path, typer.Option(help="Folder of the base model, speech and finished rows.")] = Path(
        "runs/rao_2023"
    ),
    data: Annotated[Path | None, typer.Option(help="Folder with ami/ and slurp/; by default IDIOLECT_DATA.")] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds: other devices, speech, order and noise.")] = 3,
    base: Annotated[Path | None, typer.Option(help="weights.safetensors to begin with, instead of training.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Training time of the base model.")] = None,
    rows: Annotated[list[str] | None, typer.Option(help="Only rows so named, or whose name holds this.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="The paper's setting: 400 devices, 3,000 rounds (days).")
    ] = False,
    real: Annotated[bool, typer.Option("--real", help="Also real voices, with real devices and a server.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the tables.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of word errors to this SVG file.")] = None,
) -> None:
    """Run the rows of tables 2 to 5 of Rao et al. 2023, and say which of its findings hold here."""
    folder = data or Path(os.environ.get("IDIOLECT_DATA", ""))
    scale = Scale.full() if full else Scale()
    if minutes is not None:
        scale = replace(scale, base_minutes=minutes)
    experiment = Experiment(folder, work, scale, threads=threads, base=base)
    results = run_rows(experiment, range(1, seeds + 1), rows or (), CONSOLE)
    document: dict[str, Any] = summary(experiment, results)
    if real:
        document["real"] = real_voices(folder / "barista", seeds)
    document["findings"] = judged(document)
    if plot is not None:
        write_file(plot, bar_chart(document), folders=True)
    if deliver(document, json_, output, folders=True):
        return
    console = Console()
    console.print(table(document))
    for line in remarks(document):
        console.print(line)


def real_voices(path: Path, seeds: int) -> dict[str, Any]:
    """``idiolect simulate`` on real recordings: what devices learn from slots alone, against frozen and supervised."""
    from server.lab.simulation import Shape, SimulationSettings, simulate

    settings = SimulationSettings(source=f"barista:{path}", seeds=tuple(range(1, seeds + 1)), shape=Shape(rounds=3))
    document, _ = simulate(settings)
    return document


if __name__ == "__main__":
    typer.run(main)
