"""A fifth of the devices attacks: what that does to word error under the mean and under robust averages.

    python -m examples.attackers [--source barista:PATH] [--seeds 3] [--output figures.json]

Some three minutes a seed on one core."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from examples import runner
from examples.attackers.experiment import ATTACKS, Scale, run_cells
from examples.attackers.tables import charts, summary, table
from server.lab.simulation.progress import progress

FIRST_SEED = 7


def main(
    work: runner.Work = Path("runs/attackers"),
    source: Annotated[str, typer.Option(help="made, or real recordings: barista:PATH.")] = "made",
    seeds: runner.Seeds = 3,
    kinds: Annotated[list[str] | None, typer.Option("--kind", help=f"Attacks: {', '.join(ATTACKS)}.")] = None,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run rounds with and without attackers, and say which averages keep word error near honest devices'."""
    scale = Scale(source)
    if source != "made":
        scale = replace(scale, shape=replace(scale.shape, each=None, heldout=None, heldout_each=None))
    if kinds:
        scale = replace(scale, kinds=tuple(runner.choose({kind: kind for kind in ATTACKS}, kinds)))
    with progress() as tell:
        document = summary(scale, run_cells(scale, range(FIRST_SEED, FIRST_SEED + seeds), work, tell))
    runner.present(document, [table(document)], charts(document), json_, output, plots)


if __name__ == "__main__":
    runner.start(main)
