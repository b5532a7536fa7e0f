"""Writes bundles from training runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from device_sdk.errors import BundleError, MissingExtraError

__all__ = ["app"]

app = typer.Typer(help="Write bundles from training runs.", no_args_is_help=True, add_completion=False)


@app.callback()
def _group() -> None:
    """Write bundles from training runs."""


@app.command()
def bundle(
    run: Annotated[Path, typer.Argument(help="Folder with weights.safetensors, tokenizer.model and words.txt.")],
    out: Annotated[Path, typer.Argument(help="Folder to write, or a file ending in .zip; a bundle there is replaced.")],
    add: Annotated[
        list[Path] | None, typer.Option(help="Further folders to look in for files that the run's does not hold.")
    ] = None,
    name: Annotated[str, typer.Option(help="The bundle's name.")] = "idiolect",
    version: Annotated[str, typer.Option(help="Version of the weights.")] = "1",
    card: Annotated[Path | None, typer.Option(help="JSON for the model card; made from training.json if none.")] = None,
    licence: Annotated[Path | None, typer.Option(help="Text of the licence; the run's LICENSE if none.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Write the bundle of RUN to OUT; it is opened as a device would before it takes its place. Loads no torch.

    Background, rescoring weights, language model and n-gram are taken where RUN or --add folders hold them.
    """
    from device_sdk.bundle import Bundle

    try:
        from export.bundles import bundle_run
    except ModuleNotFoundError as error:
        if error.name != "onnx":
            raise
        raise MissingExtraError("export needs onnx; run: pip install 'idiolect-server[train]'") from error
    folders = [run, *(add or [])]
    for folder in folders:
        if not folder.is_dir():
            raise BundleError(f"{folder}: no such folder; give the folder of a training run")
    described = None
    if card is not None:
        try:
            described = json.loads(card.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise BundleError(f"{card}: not a readable JSON card ({error})") from error
    written = bundle_run(folders, out, name=name, version=version, licence=_licence(licence, folders), card=described)
    opened = Bundle.open(written)
    size = sum(entry.size for entry in opened.manifest.files.values())
    report = {
        "path": str(written),
        "name": name,
        "version": version,
        "parameters": opened.architecture.parameter_count(),
        "bytes": size,
        "files": sorted(opened.manifest.files),
    }
    text = json.dumps(report, indent=2)
    if output is not None:
        output.write_text(text + "\n", "utf-8")
    if as_json:
        print(text)
    else:
        print(f"{written}: {report['parameters']:,} parameters, {size / 1e6:.1f} MB, version {version}")


def _licence(given: Path | None, folders: list[Path]) -> str:
    path = given or next((folder / "LICENSE" for folder in folders if (folder / "LICENSE").is_file()), None)
    if path is None:
        return "Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0\n"
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from error
