"""A fleet of devices learns from its users, against a live server: what `idiolect simulate` does, as a script to read.

    python examples/fleet.py [SEED]

Every device is the real SDK with a state folder of its own, every condition has a real server process, and they talk
HTTP. Five conditions hear the same utterances; each utterance is decoded and scored before anything is learned from it.
"""

import sys
from pathlib import Path

from device_sdk.privacy.spending import stated
from server.lab.simulation import Shape, SimulationSettings, render, simulate
from server.lab.simulation.progress import progress

SHAPE = Shape(rounds=3, devices=4, each=8, heldout=2, heldout_each=8)


def main(settings: SimulationSettings) -> None:
    with progress() as tell:
        document, runs = simulate(settings, tell)
    print(f"{'':12}{'slot error':>12}{'last round':>12}{'held out':>12}")
    for name, condition in document["conditions"].items():
        errors = condition["slot_error"]
        print(f"{name:12}" + "".join(f"{100 * errors[part]['mean']:11.1f}%" for part in ("all", "last", "heldout")))
    for stream, entry in document["epsilon"].items():
        print(f"{stream}: a device has shared epsilon {stated(entry['epsilon'])} at most ({entry['trust_model']})")
    page = Path("report.html")
    page.write_text(render(document, runs), "utf-8")
    print(f"plots: {page.resolve()}")


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    main(SimulationSettings(source="made", seeds=(seed,), shape=SHAPE))  # or "barista:PATH": real recordings
