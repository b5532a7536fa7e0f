"""Tables 2 and 3 of Ramesh et al. 2023: encoders pre-trained without text, by a federation or centrally, and then
taught.

    python -m examples.ramesh_2023 --work runs/ramesh_2023

Contrastive predictive coding trains a feed-forward and LSTM encoder on silos of speakers, an RNN-T begins with it and
learns from a little transcribed speech. The small setting speaks strings of digits with voices of espeak-ng, in English
(table 2) and in French (table 3), and takes minutes a row on one processor; ``--full`` is the paper's setting on
Libri-Light, LibriSpeech and MLS French below ``--data``, for a GPU. What is finished is kept in the work folder, so a
run that was stopped goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from device_sdk.commands.output import deliver, write_file
from examples.ramesh_2023.experiment import Plan, run
from examples.ramesh_2023.rows import read_row, read_rows
from examples.ramesh_2023.settings import FULL, SMALL
from examples.ramesh_2023.speech import corpora_speech, made_speech
from examples.ramesh_2023.tables import bar_chart, remarks, summary, tables
from server.lab.simulation.progress import progress


def main(
    work: Annotated[Path, typer.Option(help="Folder of speech, encoders and outcomes.")] = Path("runs/ramesh_2023"),
    full: Annotated[bool, typer.Option("--full", help="The paper's sizes on its corpora; wants a GPU.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder of the corpora of --full; by default IDIOLECT_DATA.")
    ] = None,
    table: Annotated[list[str] | None, typer.Option("--table", help="Only this table: 2 or 3.")] = None,
    row: Annotated[list[str] | None, typer.Option("--row", help="Only rows of this name.")] = None,
    recipe: Annotated[list[Path] | None, typer.Option(help="A row of your own, TOML, to run as well.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each row.")] = 3,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the tables.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of word errors to this SVG file.")] = None,
) -> None:
    """Run the rows of tables 2 and 3 of Ramesh et al. 2023 and say which of its findings hold here."""
    sizes = FULL if full else SMALL
    known = [*(one for rows in read_rows().values() for one in rows), *(read_row(path) for path in recipe or ())]
    chosen = [one for one in known if (not table or one.table in table) and (not row or one.name in row)]
    if not chosen:
        raise typer.BadParameter(f"no row is left; rows are {', '.join(dict.fromkeys(one.name for one in known))}")
    corpora = data or Path(os.environ.get("IDIOLECT_DATA", ""))
    plan = Plan(
        sizes,
        range(1, seeds + 1),
        (lambda language: corpora_speech(corpora, language))
        if full
        else (lambda language: made_speech(sizes, language, work / "speech")),
        work,
        chosen,
    )
    with progress() as tell:
        document = summary(run(plan, tell), chosen, sizes)
    if plot is not None:
        write_file(plot, bar_chart(document), folders=True)
    if deliver(document, json_, output, folders=True):
        return
    console = Console()
    for one in tables(document):
        console.print(one)
    for line in remarks(document):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
