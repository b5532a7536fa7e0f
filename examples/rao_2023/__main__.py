"""The tables of Rao et al. 2023: devices learn a new domain without transcripts, and how much of supervision that is
worth.

    IDIOLECT_DATA=... python -m examples.rao_2023 --work runs/rao_2023 --seeds 3"""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from examples import runner
from examples.rao_2023.experiment import Experiment, Scale, errors, methods
from examples.rao_2023.tables import chart, summary, table
from server.lab.simulation.progress import progress

CONSOLE = Console(stderr=True)


def main(
    work: runner.Work = Path("runs/rao_2023"),
    data: runner.Data = Path(),
    seeds: runner.Seeds = 3,
    base: Annotated[Path | None, typer.Option(help="weights.safetensors to begin with, instead of training.")] = None,
    rows: runner.Only = None,
    full: runner.Full = False,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run the rows of tables 2 to 5 of Rao et al. 2023, and say which of its findings hold here."""
    scale = Scale.full() if full else Scale()
    chosen = runner.choose({method.name: method for method in methods(scale)}, rows)
    results = []
    with progress() as tell:
        experiment = Experiment(data, work, scale, tell, base)
        domains = experiment.requests, experiment.general
        for method in (None, *chosen):  # whole rows, even of a run that is cut short
            for seed in range(1, seeds + 1):
                row = experiment.row(method, seed)
                texts = zip(domains, (row.requests, row.general), strict=True)
                new, old = (errors(experiment.tested(domain), each).rate for domain, each in texts)
                CONSOLE.print(f"seed {seed}  {row.name:28} requests {new:.3f}  general {old:.3f}")
                results.append(row)
    document = summary(experiment, results)
    runner.present(document, [table(document)], {"rows": chart(document)}, json_, output, plots)


if __name__ == "__main__":
    runner.start(main)
