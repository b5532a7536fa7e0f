"""The tables of Liu & Peng 2020: devices adapt to how often words are said, and what that is worth on meetings.

    IDIOLECT_DATA=... python -m examples.liu_2020 --setting icsi --work runs/liu_2020

``--lists`` takes a folder of cached lists (``runs/liu_2020/icsi/lists``, say) and needs no data, no speech and no
torch."""

from pathlib import Path
from typing import Annotated

import typer

from device_sdk.errors import ConfigurationError
from examples import runner
from examples.liu_2020.lists import open_cache
from examples.liu_2020.meetings import SETTINGS
from examples.liu_2020.tables import chart, measure, measure_alone, remarks, tables
from server.lab.simulation.progress import progress


def main(
    work: runner.Work = Path("runs/liu_2020"),
    data: runner.Data = Path(),
    lists: Annotated[Path | None, typer.Option(help="Cached n-best lists to rescore, instead of making them.")] = None,
    setting: Annotated[str, typer.Option(help=f"Whose talk, heard by what: {', '.join(SETTINGS)}.")] = "ami",
    clients: Annotated[int | None, typer.Option(min=1, help="Test clients to recognize; all by default.")] = None,
    utterances: Annotated[int | None, typer.Option(min=1, help="Of a client at each meeting, from its begin.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="T of tables 3 and 4.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each row with noise, averaged.")] = 3,
    json_: runner.AsJson = False,
    output: runner.Output = None,
    plots: runner.Plots = None,
) -> None:
    """Run the rows of tables 2 to 4 of Liu & Peng 2020 and what goes beyond them, and say which of its findings hold
    here."""
    if setting not in SETTINGS:
        raise ConfigurationError(f"setting: found {setting!r}, expected one of {', '.join(SETTINGS)}")
    with progress() as tell:
        if lists is None:
            from examples.liu_2020.making import Scale, make_lists
            from examples.liu_2020.passes import FirstPass

            scale = Scale(first=FirstPass(most=utterances), test=clients)
            lists = make_lists(data, work, SETTINGS[setting], scale, tell)
        cached = open_cache(lists)
        few = not cached.development
        document = measure_alone(cached, tell, rounds) if few else measure(cached, tell, rounds, repeats)
    runner.present(document, tables(document), {"rows": chart(document)}, json_, output, plots, remarks(document))


if __name__ == "__main__":
    runner.start(main)
