"""Writes bundles, from training runs or from other bundles, and bundles in the layouts of other runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import BundleError, ConfigurationError

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

app = typer.Typer(help="Write bundles, and bundles for other runtimes.", no_args_is_help=True, add_completion=False)


GivenBundle = Annotated[str, typer.Argument(help="Folder or zip of a bundle, or 'default' for the packaged one.")]
OutBundle = Annotated[
    Path, typer.Argument(help="Folder to write, or a file ending in .zip; a bundle there is replaced.")
]
OutFolder = Annotated[Path, typer.Argument(help="Folder to write.")]


@app.command()
def bundle(
    run: Annotated[Path, typer.Argument(help="Folder with weights.safetensors, tokenizer.model and words.txt.")],
    out: OutBundle,
    add: Annotated[
        list[Path] | None, typer.Option(help="Further folders to look in for files that the run's does not hold.")
    ] = None,
    name: Annotated[str, typer.Option(help="The bundle's name.")] = "idiolect",
    version: Annotated[str, typer.Option(help="Version of the weights.")] = "1",
    card: Annotated[Path | None, typer.Option(help="JSON for the model card; made from training.json if none.")] = None,
    licence: Annotated[Path | None, typer.Option(help="Text of the licence; the run's LICENSE if none.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Write the bundle of RUN to OUT; it is opened as a device would before it takes its place. Needs no torch.

    Background, rescoring weights, language model and n-gram are taken where RUN or --add folders hold them."""
    from export import bundles

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
    text = _licence(licence, folders)
    written = bundles.bundle_run(folders, out, name=name, version=version, licence=text, card=described)
    _report_bundle(written, as_json, output)


@app.command()
def refresh(
    bundle: GivenBundle,
    out: Annotated[Path, typer.Argument(help="Folder to write, or a file ending in .zip; may be BUNDLE itself.")],
    version: Annotated[str | None, typer.Option(help="Version of the weights; the bundle's own if none.")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Write BUNDLE to OUT with the graphs of this version of idiolect; weights, words, models and card stay.

    Where a release of idiolect adds graphs, this is how a bundle gets them without its training run. Needs no torch."""
    from device_sdk.bundle import Bundle
    from export import bundles

    opened = Bundle.open(None if bundle == "default" else bundle)
    _report_bundle(bundles.refresh(opened, out, version=version), as_json, output)


@app.command()
def mean(
    bundle: GivenBundle,
    out: OutBundle,
    version: Annotated[str, typer.Option(help="Version of the weights.")],
    add: Annotated[
        list[str] | None, typer.Option(help="PATH:SHARE of another bundle, 'default' too, or of a run's folder.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(
            help="language_model.onnx, pieces.ngram.safetensors or ctc.onnx to take the place of BUNDLE's.",
            exists=True,
        ),
    ] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Write BUNDLE to OUT with the mean of its weights and of others that were trained from it; it has the rest.

    Such a mean is often better than each of them. Afterwards idiolect tune confidence and second-moments say how sure
    it may be and how far it steps. Needs no torch."""
    from device_sdk.bundle import Bundle
    from device_sdk.bundle.bundle import DEFAULT_BUNDLE
    from export import bundles

    shares: dict[Path, float] = {}
    for given in add or ():
        named, _, share = given.rpartition(":")
        path = DEFAULT_BUNDLE if named == "default" else Path(named)
        if path.resolve() in {other.resolve() for other in shares}:
            raise ConfigurationError(f"--add: found {named!r} twice, expected it once; give it one share, the sum")
        try:
            shares[path] = float(share)
        except ValueError:
            raise ConfigurationError(f"--add: found {given!r}, expected PATH:SHARE, such as runs/base:0.5") from None
    opened = Bundle.open(None if bundle == "default" else bundle)
    _report_bundle(bundles.mean(opened, shares, out, version=version, models=model or ()), as_json, output)


@app.command()
def wider(
    bundle: GivenBundle,
    out: OutBundle,
    cells: Annotated[int, typer.Option(help="Cells in every layer of the encoder, more than BUNDLE has.")],
    version: Annotated[str, typer.Option(help="Version of the weights.")],
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Write BUNDLE to OUT with more cells, hearing as it did, for idiolect train rnnt --begin to go on from.

    For a network that has learned what it can hold. Needs no torch."""
    from device_sdk.bundle import Bundle
    from export import bundles

    opened = Bundle.open(None if bundle == "default" else bundle)
    _report_bundle(bundles.widen(opened, out, cells, version=version), as_json, output)


@app.command()
def sherpa(bundle: GivenBundle, out: OutFolder, as_json: AsJson = False, output: Output = None) -> None:
    """Write BUNDLE for sherpa-onnx, streaming and offline; the README.md in OUT says how to load it. Needs no torch."""
    from device_sdk.bundle import Bundle
    from export.sherpa import export_sherpa

    opened = Bundle.open(None if bundle == "default" else bundle)
    _report_files(opened, export_sherpa(opened, out), as_json, output)


@app.command()
def executorch(
    bundle: GivenBundle,
    out: OutFolder,
    training: Annotated[
        bool, typer.Option("--training", help="Also write training programs, for utterances up to three sizes.")
    ] = False,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Write BUNDLE as ExecuTorch programs on XNNPACK: encoder.pte, predictor.pte, joiner.pte and executorch.json.

    A device with DeviceSettings(runtime="executorch", programs=OUT) recognizes with them, and learns with --training.
    """
    from device_sdk.bundle import Bundle
    from export.executorch import TRAINING_BUCKETS, export_executorch

    opened = Bundle.open(None if bundle == "default" else bundle)
    _report_files(opened, export_executorch(opened, out, TRAINING_BUCKETS if training else ()), as_json, output)


def _report_bundle(written: Path, as_json: bool, output: Path | None) -> None:
    from device_sdk.bundle import Bundle

    opened = Bundle.open(written)
    sizes = {name: entry.size for name, entry in sorted(opened.manifest.files.items())}
    _report(opened, written, sizes, as_json, output, opened.architecture.parameter_count())


def _report_files(bundle: Bundle, folder: Path, as_json: bool, output: Path | None) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    _report(bundle, folder, sizes, as_json, output)


def _report(
    bundle: Bundle, written: Path, sizes: dict[str, int], as_json: bool, output: Path | None, parameters: int = 0
) -> None:
    size, counted = sum(sizes.values()), {"parameters": parameters} if parameters else {}
    named = {"path": str(written), "name": bundle.manifest.name, "version": bundle.version}
    if not deliver(named | counted | {"bytes": size, "files": list(sizes)}, as_json, output):
        what = f"{parameters:,} parameters," if parameters else f"{', '.join(sizes)};"
        print(f"{written}: {what} {size / 1e6:.1f} MB, version {bundle.version}")


def _licence(given: Path | None, folders: list[Path]) -> str:
    path = given or next((folder / "LICENSE" for folder in folders if (folder / "LICENSE").is_file()), None)
    if path is None:
        return "Apache-2.0, https://www.apache.org/licenses/LICENSE-2.0\n"
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from error
