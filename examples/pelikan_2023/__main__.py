"""Pelikan et al. 2023 in miniature: federated learning of speech with differential privacy, and what per-layer clipping
is worth.

    python -m examples.pelikan_2023 --work runs/pelikan_2023 --seeds 3

A small CTC transformer (the paper's network, smaller) is trained on a server's voices, then goes on to learn from
clients with other voices and accents in federated rounds: every client's delta is clipped, the sum is noised, the
server takes a LAMB step. All speech is made by espeak-ng. Every row is a file of ``examples/pelikan_2023/recipes``.
Everything made on the way is kept in the work folder, so that a second call goes on where the first stopped.

Seeds decide cohorts, batches and masks; speech and seed model are the same for all, as they are in the paper.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from device_sdk.commands.output import deliver, write_file
from server.lab.simulation.dictation.experiment import Experiment, Scale
from server.lab.simulation.dictation.recipes import read_recipes
from server.lab.simulation.dictation.tables import chart, remarks, summary, table
from server.lab.simulation.progress import progress

RECIPES = Path(__file__).parent / "recipes"
CONSOLE = Console(stderr=True)


def main(
    work: Annotated[Path, typer.Option(help="Folder of speech, models, states and finished rows.")] = Path(
        "runs/pelikan_2023"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    rows: Annotated[list[str] | None, typer.Option(help="Only rows whose name or table holds this.")] = None,
    recipes: Annotated[Path, typer.Option(help="Folder of recipes, a TOML file a row.")] = RECIPES,
    full: Annotated[bool, typer.Option("--full", help="A larger network, 20,000 clients, 2,000 rounds: days.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the table.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of word errors to this SVG file.")] = None,
) -> None:
    """Run the rows of Pelikan et al. 2023 and say whether per-layer clipping wins back what noise costs."""
    found = read_recipes(recipes)
    chosen = [r for r in found if not rows or any(part in r.name or part == r.table for part in rows)]
    results = []
    with progress() as tell:
        experiment = Experiment(work, Scale.full() if full else Scale(), tell, threads)
        for seed in range(1, seeds + 1):
            for recipe in chosen:
                results.append(experiment.row(recipe, seed))
                CONSOLE.print(f"seed {seed}  {recipe.name:28} {100 * results[-1].error:.1f} %")
    document = summary(chosen, results)
    if plot is not None:
        write_file(plot, chart(document), folders=True)
    if deliver(document, json_, output, folders=True):
        return
    console = Console()
    console.print(table(document))
    for line in remarks(document):
        console.print(line, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
