"""``idiolect corpora``: speech to train on, made ready to travel."""

from pathlib import Path
from typing import Annotated

import typer

from device_sdk.commands.output import AsJson, Output, deliver, print_table

app = typer.Typer(help="Make speech that models train on ready to travel.", no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Speech to train on, made ready to travel."""


@app.command()
def pack(
    data: Annotated[list[str], typer.Argument(help="KIND:PATH, such as librispeech:PATH; several.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="New folder; KIND:OUT reads each kind again.")],
    megabytes: Annotated[float, typer.Option(min=0.1, help="What it may hold, of 10^6 bytes each.")] = 40.0,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Base and development voices of corpora as Ogg Opus in one folder, for another machine to train on.

    Where not all fit, corpora share the hours equally, by whole voices."""
    from server.lab.corpora.pack import pack as write

    found = write(data, out, megabytes)
    if not deliver({"folder": str(out), "data": found}, as_json, output):
        from rich.console import Console
        from rich.table import Table

        table = Table("kind", "voices", "utterances", "hours", "megabytes", title=str(out))
        for kind, taken in found.items():
            counts = f"{taken['voices']:.0f}", f"{taken['utterances']:.0f}"
            table.add_row(kind, *counts, f"{taken['hours']:.2f}", f"{taken['megabytes']:.1f}")
        print_table(Console(), table)
