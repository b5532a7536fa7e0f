"""Table 1 and figures 3 and 4 of Gao et al. 2022: a crowd of unlike speakers, and how their updates are weighed.

python -m examples.gao_2022 --work runs/gao_2022 --seeds 3"""

from pathlib import Path
from typing import Annotated

import typer

from examples import runner
from examples.gao_2022.experiment import Experiment, Scale
from examples.gao_2022.recipes import LANGUAGES, by_cohort, table_1
from examples.gao_2022.tables import charts, summary, table
from server.lab.simulation.progress import progress


def main(
    work: runner.Work = Path("runs/gao_2022"),
    seeds: runner.Seeds = 3,
    languages: Annotated[list[str] | None, typer.Option("--language", help="fr or it; both by default.")] = None,
    rows: runner.Only = None,
    cohorts: Annotated[bool, typer.Option("--cohorts", help="Also figure 3: how many devices make a round.")] = False,
    full: runner.Full = False,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run the rows of Gao et al. 2022, and say which of its findings hold here."""
    scale = Scale.full() if full else Scale()
    recipes = [*table_1(scale.rounds, scale.cohort), *(by_cohort(scale.rounds) if cohorts else ())]
    chosen = runner.choose({recipe.name: recipe for recipe in recipes}, rows)
    spoken = [language for language in LANGUAGES if not languages or language in languages]
    with progress() as tell:
        experiment = Experiment(work, scale, tell)
        results = [
            experiment.row(recipe, language, seed)
            for language in spoken
            for seed in range(1, seeds + 1)
            for recipe in chosen
        ]
    document = summary(chosen, results, scale)
    runner.present(document, [table(document)], charts(document), json_, output, plots)


if __name__ == "__main__":
    runner.start(main)
