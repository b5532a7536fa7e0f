"""Checks and shows bundles: verify loads and tries everything, show prints what a bundle is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import AsJson, Output, deliver, print_table
from device_sdk.errors import BundleError

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

app = typer.Typer(help="Check and show bundles.", no_args_is_help=True, add_completion=False)

Place = Annotated[Path | None, typer.Argument(help="Folder or zip; the packaged bundle if none.")]


@app.command()
def verify(path: Place = None, as_json: AsJson = False, output: Output = None) -> None:
    """Check every hash, size, shape, value and version, then load every graph and try it on a second of silence."""
    from device_sdk.bundle import Bundle

    report: dict[str, Any] = {"path": str(path) if path else None, "ok": True, "checks": [], "error": None}
    try:
        bundle = Bundle.open(path)
        report |= {"path": str(bundle.path), "version": bundle.version}
        report["checks"].append(f"{len(bundle.manifest.files)} files: size and sha256")
        report["checks"].append(f"{len(bundle.weights)} tensors: name, shape, type, finite")
        report["checks"] += try_out(bundle)
    except BundleError as error:
        report |= {"ok": False, "error": str(error)}
        if not (as_json or output):
            raise
    printed = deliver(report, as_json, output)
    if not report["ok"]:
        raise typer.Exit(1)
    if not printed:
        for check in report["checks"]:
            print(f"ok  {check}")
        print(f"{report['path']}: fit for use")


@app.command()
def show(path: Place = None, as_json: AsJson = False, output: Output = None) -> None:
    """Print a bundle's name, version, sizes, settings, files and model card."""
    from device_sdk.bundle import Bundle

    bundle = Bundle.open(path)
    report = describe(bundle)
    if not deliver(report, as_json, output):
        _print(report, bundle.file("MODEL_CARD.md").read_text("utf-8"))


def describe(bundle: Bundle) -> dict[str, Any]:
    """What a bundle is, as JSON values."""
    manifest = bundle.manifest
    return {
        "path": str(bundle.path),
        "name": manifest.name,
        "version": bundle.version,
        "created": manifest.created,
        "format_version": manifest.format_version,
        "parameters": bundle.architecture.parameter_count(),
        "bytes": sum(entry.size for entry in manifest.files.values()),
        "architecture": manifest.architecture,
        "features": manifest.features,
        "words": len(bundle.words),
        "words_digest": bundle.words.digest,
        "combination": bundle.combination.to_mapping(),
        "files": {name: entry.size for name, entry in manifest.files.items()},
        "training": manifest.training,
        "card": json.loads(bundle.file("card.json").read_text("utf-8")),
    }


def try_out(bundle: Bundle) -> list[str]:
    """Load every graph and run it once; returns what was done. Raises :class:`BundleError` for what does not work."""
    import numpy as np

    from device_sdk.bundle.architecture import trainable, training_file
    from device_sdk.bundle.streaming import StreamingArchitecture, subsets_of
    from device_sdk.learning.step import factorize
    from device_sdk.runtimes.onnxruntime import PRECISIONS
    from device_sdk.runtimes.phones import FILE as PHONES_FILE
    from device_sdk.runtimes.phones import PhoneTraining
    from device_sdk.runtimes.protocol import try_transducer
    from device_sdk.runtimes.streaming import open_transducer
    from device_sdk.runtimes.training import TrainingSession

    sizes, checks = bundle.architecture, list[str]()
    brought = isinstance(sizes, StreamingArchitecture)
    features = np.full((33 * sizes.subsampling_factor, sizes.mel_bins), -10.0, np.float32)
    for precision in PRECISIONS:
        if precision == "int8" and not bundle.has("encoder.int8.onnx"):
            checks.append("recognition graphs, int8: none; idiolect export refresh makes them")
            continue
        frames = try_transducer(open_transducer(bundle, precision=precision), f"{bundle.path}, {precision}")
        checks.append(f"recognition graphs, {precision}: {frames} frames encoded, {sizes.pieces} pieces scored")
    for subset in subsets_of(bundle.architecture):
        file, parameters = training_file(subset), dict(bundle.weights)
        if not bundle.has(file) and (brought or subset != "whole"):
            makes = "importing the model again" if brought else "idiolect export refresh"
            why = bundle.manifest.training.get("not_differentiable") or f"{makes} makes it"
            checks.append(f"training graph, {subset}: none; {why}")
            continue
        if subset == "adapters":
            matrices = trainable(sizes, subset)
            parameters |= factorize(parameters, parameters, matrices, 1, np.random.default_rng(0))
        session = TrainingSession(bundle, subset=subset)
        gradients = session.run(parameters, features, [[1], []], [1.0, 0.0], [0.0, 1.0], 1.0).gradients
        if not all(np.isfinite(value).all() for value in gradients.values()):
            raise BundleError(f"{bundle.path}: {file} gives gradients that are not finite; export it again")
        checks.append(f"training graph, {subset}: {len(gradients)} gradients, finite")
    if bundle.has("language_model.onnx"):
        from device_sdk.runtimes.language_model import NeuralLanguageModel

        scores = NeuralLanguageModel(bundle)([[1]])[0]
        checks.append(f"language model: {len(scores)} words scored")
    if bundle.has("ctc.onnx"):
        from device_sdk.runtimes.ctc import CtcHead

        heard = CtcHead(bundle)(np.zeros((33, sizes.joiner_size), np.float32))
        checks.append(f"CTC head: {heard.shape[1] - 1} phones scored")
    if bundle.has(PHONES_FILE):
        phones = PhoneTraining(TrainingSession(bundle, subset=bundle.subset), bundle)
        gradients = phones.run(dict(bundle.weights), features, [[1]], [1.0]).gradients
        if not all(np.isfinite(value).all() for value in gradients.values()):
            raise BundleError(f"{bundle.path}: {PHONES_FILE} gives gradients that are not finite; export it again")
        checks.append(f"training graph, phones: {len(gradients)} gradients, finite")
    if any(bundle.has(name) for name in ("ngram.arpa", "ngram.arpa.gz")):
        checks.append(_try_ngram(bundle))
    return checks


def _try_ngram(bundle: Bundle) -> str:
    import warnings

    from device_sdk.runtimes.language_model import load_ngram

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a missing kenlm is said in the check's own line
        loaded = load_ngram(bundle)
    if loaded is None:
        return "n-gram: not tried, kenlm is not installed (pip install 'idiolect[ngram]')"
    return f"n-gram: {len(loaded([[1]])[0])} words scored"


def _print(report: dict[str, Any], card: str) -> None:
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.table import Table

    console = Console()
    table = Table(title=f"{report['name']} {report['version']}", show_header=False)
    table.add_row("path", report["path"])
    table.add_row("created", report["created"])
    table.add_row("parameters", f"{report['parameters']:,}")
    table.add_row("size", f"{report['bytes'] / 1e6:.1f} MB")
    for group in ("architecture", "combination"):
        table.add_row(group, ", ".join(f"{name} {value}" for name, value in report[group].items()))
    table.add_row("words", f"{report['words']:,}")
    table.add_row("files", "\n".join(f"{name}  {size:,}" for name, size in report["files"].items()))
    print_table(console, table)
    console.print(Markdown(card))
