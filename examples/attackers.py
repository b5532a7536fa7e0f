"""A fifth of the devices attacks: what that does to word error under the mean and under robust averages.

    python examples/attackers.py [--source barista:PATH] [--seeds 3] [--output figures.json]

Devices take local steps on the shipped model; their reports, some of them poisoned, go through the server's own checks
and averages round after round, and held-out voices are recognised with the result.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from server.simulation.attackers.experiment import Cell, Scale, run_cells
from server.simulation.attackers.tables import summary, table
from server.simulation.outcomes import rate
from server.simulation.population import Shape
from server.simulation.progress import progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default="made", help="made, or real recordings: barista:PATH")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--each", type=int, help="utterances of a device; recordings: all")
    parser.add_argument("--attackers", type=float, default=0.2, help="share of the devices")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--server-rate", type=float, default=4.0, help="learning rate of the server")
    parser.add_argument("--bundle", help="folder; the packaged one by default")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    given = parser.parse_args()
    made = given.source == "made"
    shape = Shape(
        rounds=1,
        devices=given.devices,
        each=given.each or (12 if made else None),
        heldout=12 if made else None,
        heldout_each=15 if made else None,
    )
    scale = Scale(
        given.source,
        shape,
        rounds=given.rounds,
        server_rate=given.server_rate,
        attackers=given.attackers,
        bundle=given.bundle,
    )
    console = Console()

    def found(cell: Cell) -> None:
        name = f"{cell.attack or 'honest'}, {cell.averaging or 'before'}"
        console.print(f"seed {cell.seed}  {name:28} {100 * (rate(cell.heldout, 'wer') or 0):.2f} %")

    with progress() as tell:
        document = summary(scale, run_cells(scale, range(1, given.seeds + 1), tell, found))
    if given.output is not None:
        given.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    console.print(table(document))
    for attack, holds in document["holds"].items():
        bar = f"{100 * document['worst']:.0f} %"
        console.print(
            f"{'holds' if holds else 'does NOT hold'}: {attack}, a robust average at most {bar} above the mean"
        )


if __name__ == "__main__":
    main()
