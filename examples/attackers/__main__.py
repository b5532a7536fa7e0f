"""A fifth of the devices attacks: what that does to word error under the mean and under robust averages.

    python -m examples.attackers [--source barista:PATH] [--seeds 7 8 9] [--output figures.json]

Devices take local steps on the shipped model; their reports, some of them poisoned, go through the server's own checks
and averages round after round, and held-out voices are recognized with the result. Made people speak into microphones
that the model does not know, so that there is something to learn. Some three minutes a seed on one core; every other
average takes one more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from examples.attackers.experiment import AVERAGES, Cell, Scale, run_cells
from examples.attackers.tables import summary, table, verdict_lines
from server.lab.simulation.attackers.attacks import ATTACKS
from server.lab.simulation.outcomes import rate
from server.lab.simulation.population import Shape
from server.lab.simulation.progress import progress


def main() -> None:
    usual = Scale()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", default=usual.source, help="made, or real recordings: barista:PATH")
    parser.add_argument("--seeds", type=int, nargs="+", default=[7, 8, 9])
    parser.add_argument("--devices", type=int, default=usual.shape.devices)
    parser.add_argument("--heldout", type=int, default=usual.shape.heldout, help="made voices that no device has")
    parser.add_argument("--kinds", nargs="+", choices=ATTACKS, default=usual.kinds, help="of attacks")
    parser.add_argument("--averages", nargs="+", choices=AVERAGES, default=["cosine"], help="beside the mean")
    parser.add_argument("--attackers", type=float, default=usual.attackers, help="share of the devices")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--batch", type=int, default=usual.batch, help="utterances of a device in each round")
    parser.add_argument("--server-rate", type=float, default=usual.server_rate, help="learning rate of the server")
    parser.add_argument("--bundle", help="folder; the packaged one by default")
    parser.add_argument("--output", type=Path, help="where the figures go as JSON")
    given = parser.parse_args()
    made = given.source == "made"
    scale = Scale(
        given.source,
        Shape(
            rounds=1,
            devices=given.devices,
            each=given.rounds * given.batch if made else None,
            heldout=given.heldout if made else None,
            heldout_each=usual.shape.heldout_each if made else None,
        ),
        rounds=given.rounds,
        batch=given.batch,
        server_rate=given.server_rate,
        attackers=given.attackers,
        kinds=tuple(given.kinds),
        averages=("mean", *(each for each in AVERAGES if each in given.averages and each != "mean")),
        bundle=given.bundle,
    )
    console = Console()

    def found(cell: Cell) -> None:
        name = f"{cell.attack or 'honest'}, {cell.averaging or 'before'}"
        console.print(f"seed {cell.seed}  {name:28} {100 * (rate(cell.heldout, 'wer') or 0):.2f} %")

    with progress() as tell:
        document = summary(scale, run_cells(scale, given.seeds, tell, found))
    if given.output is not None:
        given.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    console.print(table(document))
    for line in verdict_lines(document):
        console.print(line)


if __name__ == "__main__":
    main()
