"""A fifth of the devices attacks: what that does to word error under the mean and under robust averages.

    python -m examples.attackers [--source barista:PATH] [--seeds 3] [--output figures.json]

Some three minutes a seed on one core.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from examples import runner
from examples.attackers.experiment import ATTACKS, Scale, run_cells
from examples.attackers.tables import charts, summary, table
from server.lab.simulation.progress import progress

USUAL = Scale()
FIRST_SEED = 7


def main(
    work: runner.Work = Path("runs/attackers"),
    source: Annotated[str, typer.Option(help="made, or real recordings: barista:PATH.")] = USUAL.source,
    seeds: runner.Seeds = 3,
    devices: Annotated[int | None, typer.Option(help="How many.")] = USUAL.shape.devices,
    heldout: Annotated[int | None, typer.Option(help="Made voices that no device has.")] = USUAL.shape.heldout,
    kinds: Annotated[list[str] | None, typer.Option("--kind", help=f"Attacks: {', '.join(ATTACKS)}.")] = None,
    attackers: Annotated[float, typer.Option(min=0, max=1, help="Share of the devices.")] = USUAL.attackers,
    rounds: Annotated[int, typer.Option(min=1, help="How many.")] = USUAL.rounds,
    batch: Annotated[int, typer.Option(min=1, help="Utterances of a device in each round.")] = USUAL.batch,
    server_rate: Annotated[float, typer.Option(help="Learning rate of the server.")] = USUAL.server_rate,
    bundle: Annotated[str | None, typer.Option(help="Folder; the packaged one by default.")] = None,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run rounds with and without attackers, and say which averages keep word error near honest devices'."""
    shape = replace(USUAL.shape, devices=devices, each=rounds * batch, heldout=heldout)
    if source != "made":
        shape = replace(shape, each=None, heldout=None, heldout_each=None)
    chosen = tuple(runner.choose({kind: kind for kind in ATTACKS}, kinds or USUAL.kinds))
    scale = Scale(
        source, shape, rounds, batch, server_rate=server_rate, attackers=attackers, kinds=chosen, bundle=bundle
    )
    with progress() as tell:
        document = summary(scale, run_cells(scale, range(FIRST_SEED, FIRST_SEED + seeds), work, tell))
    lines = map(runner.remark, document["findings"])
    runner.present(document, [table(document)], lines, charts(document), json_, output, plots)


if __name__ == "__main__":
    typer.run(main)
