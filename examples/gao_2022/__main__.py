"""Table 1 and figures 3 and 4 of Gao et al. 2022: a crowd of unlike speakers, and how their updates are weighed.

    python -m examples.gao_2022 --work runs/gao_2022 --seeds 3

Made voices read digits in French and Italian; some speakers say much, most say little, and a quarter of them
is hardly heard. A CTC transformer is warmed up on the speakers with most speech, and learns from the others in rounds:
ten silos, devices that two speakers share, devices of one; weighed by examples, by loss, by word error; with a step of
the server on held-out speech after each round. Tests hear speakers that no stage has. The network stands in for the
paper's CRDNN, whose attention needs far more speech than a small setting has. Rates, rounds and the number of speakers
were chosen for plain averaging in French under seed 101, which no table has. What is made on the way stays in the work
folder, so a second call goes on where the first stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from device_sdk.commands.output import deliver, write_file
from examples.gao_2022.experiment import Experiment, Scale
from examples.gao_2022.recipes import LANGUAGES, by_cohort, table_1
from examples.gao_2022.tables import charts, remarks, summary, table
from server.lab.simulation.progress import progress


def main(
    work: Annotated[Path, typer.Option(help="Folder of speech, models and finished rows.")] = Path("runs/gao_2022"),
    seeds: Annotated[int, typer.Option(help="How many seeds: other speakers, sentences and order.")] = 3,
    languages: Annotated[list[str] | None, typer.Option("--language", help="fr or it; both by default.")] = None,
    rows: Annotated[list[str] | None, typer.Option(help="Only rows whose name holds this.")] = None,
    cohorts: Annotated[bool, typer.Option("--cohorts", help="Also figure 3: how many devices make a round.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As many speakers as the paper has: for a GPU.")] = False,
    threads: Annotated[int, typer.Option(help="Threads of torch.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the table.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write charts into this folder.")] = None,
) -> None:
    """Run the rows of Gao et al. 2022, and say which of its findings hold here."""
    scale = Scale.full() if full else Scale()
    recipes = [*table_1(scale.rounds, scale.cohort), *(by_cohort(scale.rounds) if cohorts else ())]
    chosen = [recipe for recipe in recipes if not rows or any(part in recipe.name for part in rows)]
    spoken = [language for language in LANGUAGES if not languages or language in languages]
    with progress() as tell:
        experiment = Experiment(work, scale, tell, threads)
        found = [
            experiment.row(recipe, language, seed)
            for language in spoken
            for seed in range(1, seeds + 1)
            for recipe in chosen
        ]
    document = summary(chosen, found, scale)
    for name, drawn in charts(document).items() if plots is not None else ():
        assert plots is not None
        write_file(plots / f"{name}.svg", drawn, folders=True)
    if deliver(document, json_, output, folders=True):
        return
    console = Console()
    console.print(table(document))
    for line in remarks(document):
        console.print(line)


if __name__ == "__main__":
    typer.run(main)
