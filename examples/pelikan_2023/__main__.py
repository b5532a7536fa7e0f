"""Pelikan et al. 2023 in miniature: federated learning of speech with differential privacy, clipped by layer or not.

python -m examples.pelikan_2023 --work runs/pelikan_2023 --seeds 3 [--recipe FILE]"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples import runner
from examples.pelikan_2023.experiment import Experiment, Scale
from examples.pelikan_2023.recipe import read_recipe, read_recipes
from examples.pelikan_2023.tables import chart, remarks, summary, table
from server.lab.simulation.progress import progress

RECIPES = Path(__file__).parent / "recipes"
CONSOLE = Console(stderr=True)


def main(
    work: runner.Work = Path("runs/pelikan_2023"),
    seeds: runner.Seeds = 3,
    rows: runner.Only = None,
    recipe: Annotated[list[Path] | None, typer.Option(help="A row of your own (TOML) instead of the paper's.")] = None,
    full: runner.Full = False,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run the rows of Pelikan et al. 2023 and say whether per-layer clipping wins back what noise costs."""
    recipes = [read_recipe(path) for path in recipe] if recipe else read_recipes(RECIPES)
    chosen = runner.choose({each.name: each for each in recipes}, rows)
    results = []
    with progress() as tell:
        experiment = Experiment(work, Scale.full() if full else Scale(), tell)
        for seed in range(1, seeds + 1):
            for each in chosen:
                results.append(experiment.row(each, seed))
                CONSOLE.print(f"seed {seed}  {each.name:28} {100 * results[-1].error:.1f} %")
    document = summary(chosen, results)
    charts = {"noise": chart(document)}
    runner.present(document, [table(document)], charts, json_, output, plots, remarks(document))


if __name__ == "__main__":
    typer.run(main)
