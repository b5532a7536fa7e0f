"""Pelikan et al. 2023 in miniature: federated learning of speech with differential privacy, clipped by layer or not.

python -m examples.pelikan_2023 --work runs/pelikan_2023 --seeds 3 [--recipe FILE]"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples import runner
from examples.pelikan_2023.experiment import Experiment, Row, Scale
from examples.pelikan_2023.imbalance import CLEAN, NOISED, entry
from examples.pelikan_2023.recipe import Recipe, read_recipe, read_recipes
from examples.pelikan_2023.tables import chart, depth_table, remarks, summary, table
from server.lab.simulation.progress import progress

RECIPES = Path(__file__).parent / "recipes"
DEPTHS = (2, 4, 8, 16, 36)
CONSOLE = Console(stderr=True)


def main(
    work: runner.Work = Path("runs/pelikan_2023"),
    seeds: runner.Seeds = 3,
    rows: runner.Only = None,
    recipe: Annotated[list[Path] | None, typer.Option(help="A row of your own (TOML) instead of the paper's.")] = None,
    depths: Annotated[bool, typer.Option("--depths", help="Only imbalance by depth of the network; no rows.")] = False,
    full: runner.Full = False,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run the rows of Pelikan et al. 2023 and say whether per-layer clipping wins back what noise costs. Rows that clip
    by layer are run only where the entry test is passed: else nothing is there to win back."""
    own = [read_recipe(path) for path in recipe or ()]
    known = {each.name: each for each in own or read_recipes(RECIPES)}
    chosen: list[Recipe] = [] if depths else runner.choose(known, rows)
    layered = {each.name for each in chosen if each.layered} if not own else set[str]()
    if layered:
        chosen = [*(known[name] for name in (CLEAN, NOISED)), *(c for c in chosen if c.name not in (CLEAN, NOISED))]
    results: list[Row] = []
    gate = None
    with progress() as tell:
        experiment = Experiment(work, Scale.full() if full else Scale(), tell)

        def run(some: list[Recipe]) -> None:
            for seed in range(1, seeds + 1):
                for each in some:
                    results.append(experiment.row(each, seed))
                    CONSOLE.print(f"seed {seed}  {each.name:28} {100 * results[-1].error:.1f} %")

        run([each for each in chosen if each.name not in layered])
        if layered:
            gate = entry(*experiment.measured(results))
            if gate["passes"]:
                run([each for each in chosen if each.name in layered])
            else:
                chosen = [each for each in chosen if each.name not in layered]
        printed = [experiment.depth(each) for each in DEPTHS] if depths or (gate and not gate["passes"]) else []
    document = summary(chosen, results, gate, printed)
    shown = [*([table(document)] if results else []), *([depth_table(document)] if printed else [])]
    charts = {"noise": chart(document)} if results else {}
    runner.present(document, shown, charts, json_, output, plots, remarks(document) if results else ())


if __name__ == "__main__":
    runner.start(main)
