"""``idiolect import``: bundles from transducers of other projects."""

from pathlib import Path
from typing import Annotated

import typer

from device_sdk.commands.output import AsJson, Output, deliver, print_table

app = typer.Typer(help="Make bundles of transducers of other projects.", no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Make bundles of transducers of other projects."""


@app.command()
def sherpa(
    folder: Annotated[Path, typer.Argument(help="Folder with encoder, decoder and joiner (.onnx) and tokens.txt.")],
    text: Annotated[
        list[Path], typer.Option(help="Sentences, one a line: word list, background and n-gram come from them.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder to write, or a file ending in .zip.")],
    name: Annotated[str, typer.Option(help="The bundle's name.")] = "imported",
    version: Annotated[str, typer.Option(help="Version of the weights.")] = "1",
    order: Annotated[int, typer.Option(min=2, max=6, help="Of the n-gram.")] = 3,
    least: Annotated[int, typer.Option(min=1, help="How often a word must be in the text to be listed.")] = 1,
    licence: Annotated[Path | None, typer.Option(help="Text of the model's licence; the folder's if none.")] = None,
    origin: Annotated[str, typer.Option(help="Where the model is from, for the card.")] = "",
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """A streaming transducer in sherpa-onnx's layout as a bundle: zipformer2, or NeMo's cache-aware ones.

    Everything is checked, tried and compared first, in a process of its own; nothing is written for what does not
    work. Needs no torch."""
    from server.lab.imports import Import, import_bundle

    given = Import(folder, out, tuple(text), name, version, order, least, licence, origin)
    made = import_bundle(given)
    if not deliver(made, as_json, output):
        from rich.console import Console
        from rich.table import Table

        table = Table("of the bundle", "value", title=f"{made.pop('bundle')}")
        for field, value in made.items():
            table.add_row(field.replace("_", " "), str(value))
        print_table(Console(), table)
