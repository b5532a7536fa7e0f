"""The tables of Liu & Peng 2020: devices adapt to how often words are said, and what that is worth on meetings.

    IDIOLECT_DATA=... python -m examples.liu_2020 --work runs/liu_2020

Every meeting (``ami``) is a client that talks in the order of time, with a voice of espeak-ng for each person. A
recognizer and two language models are trained without the test meetings' series, its 20-best lists are scored once and
cached, and everything else is arithmetic on them: lambda and all other settings are chosen on development meetings,
then every row is measured on test meetings. What was made is kept in the work folder; ``--lists`` takes a folder of
cached lists (``runs/liu_2020/lists``, say) and needs no data, no speech and no torch.

The paper's other set, Curated Video, is not public.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from device_sdk.commands.output import deliver, write_file
from examples.liu_2020.cache import open_cache
from examples.liu_2020.measures import measure
from examples.liu_2020.tables import bar_chart, remarks, tables
from server.lab.simulation.progress import progress


def main(
    work: Annotated[Path, typer.Option(help="Folder of models and n-best lists.")] = Path("runs/liu_2020"),
    data: Annotated[Path | None, typer.Option(help="Folder with ami/ and slurp/; by default IDIOLECT_DATA.")] = None,
    lists: Annotated[Path | None, typer.Option(help="Cached n-best lists to rescore, instead of making them.")] = None,
    meetings: Annotated[int | None, typer.Option(min=1, help="Test meetings to recognize; all by default.")] = None,
    utterances: Annotated[int, typer.Option(min=1, help="Of each meeting, from its beginning.")] = 200,
    rounds: Annotated[int, typer.Option(min=1, help="T of tables 3 and 4.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each row with noise, averaged.")] = 3,
    processes: Annotated[int, typer.Option(min=1, help="Of the first pass.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the tables.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of word errors to this SVG file.")] = None,
) -> None:
    """Run the rows of tables 2 to 4 of Liu & Peng 2020 and what goes beyond them, and say which of its findings hold
    here."""
    with progress() as tell:
        if lists is None:
            from examples.liu_2020.experiment import Scale, make_lists

            scale = Scale(test=meetings, processes=processes)
            scale = replace(scale, first=replace(scale.first, most=utterances))
            lists = make_lists(data or Path(os.environ.get("IDIOLECT_DATA", "")), work, scale, tell)
        document = measure(open_cache(lists), tell, rounds, repeats)
    if plot is not None:
        write_file(plot, bar_chart(document), folders=True)
    if deliver(document, json_, output, folders=True):
        return
    console = Console()
    for table in tables(document):
        console.print(table)
    for line in remarks(document):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
