"""Writes bundles: the same input gives the same bytes, and a reader never sees half of one. The model card is data
first (``card.json``), and prose made from it (``MODEL_CARD.md``)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import second_moments as second_moment_files
from device_sdk.bundle import weights as weight_files
from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.bundle import Bundle
from device_sdk.bundle.manifest import FORMAT_VERSION, MANIFEST, FileEntry, Manifest
from device_sdk.bundle.second_moments import SECOND_MOMENTS_FILE, SecondMoments
from device_sdk.errors import BundleError
from device_sdk.features.logmel import FeatureSettings
from export.graphs import build_graphs
from rescoring.combination import CombinationWeights
from rescoring.words import WordList

__all__ = ["render", "write_bundle"]

_FIRST = ("description", "data", "voices", "licences", "command", "seed", "figures", "limits")


def write_bundle(
    out: str | Path,
    *,
    name: str,
    version: str,
    architecture: Architecture,
    weights: Mapping[str, NDArray[np.generic]],
    tokenizer_model: bytes,
    words: WordList,
    background: NDArray[np.float64],
    combination: CombinationWeights,
    card: Mapping[str, Any],
    licence: str,
    models: Mapping[str, bytes] | None = None,
    second_moments: SecondMoments | None = None,
    training: Mapping[str, Any] | None = None,
    features: FeatureSettings = FeatureSettings(),
    created: str | None = None,
) -> Path:
    """Write a bundle, then open it as a device would.

    out: a folder, or a file ending in ``.zip``; a bundle that stands there is replaced in one step.
    weights: every parameter and constant of the architecture, float32, LSTMs in ONNX layout.
    background: [n] float64 over ``words``, positive, sums to 1. models: contents of language models and n-grams by the
    names of their files. card: see :func:`render`.
    second_moments: how large gradients usually are, see :mod:`device_sdk.bundle.second_moments`.
    training: how the weights came about, JSON values. created: UTC, ISO 8601; now where ``None``.
    Returns ``out``. Raises :class:`BundleError` for weights or files that a device would refuse, or where ``out`` is
    something else than a bundle; what stood there is then untouched.
    """
    target = Path(out)
    if target.exists() and not _is_bundle(target):
        raise BundleError(f"{target}: exists and is no bundle; choose another path or remove it")
    weight_files.check(architecture, weights, "weights to export")
    files: dict[str, bytes] = {
        **build_graphs(architecture),
        "weights.safetensors": weight_files.serialize(weights),
        "tokenizer.model": tokenizer_model,
        "words.txt": words.text().encode(),
        "background.safetensors": weight_files.serialize({"unigram": np.asarray(background, np.float64)}),
        "rescoring.json": _json_bytes(combination.to_mapping(), sort=True),
        "card.json": _json_bytes(card),
        "MODEL_CARD.md": render(name, version, card).encode(),
        "LICENSE": licence.encode(),
        **(models or {}),
    }
    if second_moments is not None:
        files[SECOND_MOMENTS_FILE] = second_moment_files.serialize(second_moments)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        version=version,
        created=created or datetime.now(UTC).isoformat(timespec="seconds"),
        architecture=asdict(architecture),
        features=asdict(features),
        files={
            path: FileEntry(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
            for path, content in sorted(files.items())
        },
        training=dict(training or {}),
    )
    files[MANIFEST] = manifest.to_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    (_write_zip if target.suffix == ".zip" else _write_folder)(target, files)
    return target


def _is_bundle(path: Path) -> bool:
    if path.is_dir():
        return (path / MANIFEST).is_file() or not any(path.iterdir())
    return zipfile.is_zipfile(path)


def _write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        fresh = workshop / "new"
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        Bundle.open(fresh)
        if target.exists():
            target.rename(workshop / "old")
        fresh.rename(target)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _write_zip(target: Path, files: Mapping[str, bytes]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", suffix=".zip", dir=target.parent)
    os.close(handle)
    fresh = Path(name)
    try:
        with zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in sorted(files.items()):
                entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content)
        Bundle.open(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _json_bytes(values: Mapping[str, Any], sort: bool = False) -> bytes:
    """A card's fields stay in the order they have: prose made from the file again is the same."""
    return (json.dumps(values, indent=2, sort_keys=sort, ensure_ascii=False) + "\n").encode()


def render(name: str, version: str, card: Mapping[str, Any]) -> str:
    """Markdown of a card: a heading for each field, lists and tables below it; known fields come first.

    card: JSON values by field; usual are description, data, voices, licences, command, seed, figures, limits.
    """
    order = [key for key in _FIRST if key in card] + sorted(key for key in card if key not in _FIRST)
    lines = [f"# {name} {version}", ""]
    for key in order:
        lines += [f"## {_title(key)}", "", *_lines(card[key]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _lines(value: Any, indent: int = 0) -> list[str]:
    if isinstance(value, Mapping) and value and indent == 0 and all(_is_plain(entry) for entry in value.values()):
        return ["| | |", "|---|---|", *(f"| {_title(str(key))} | {_plain(entry)} |" for key, entry in value.items())]
    lines: list[str] = []
    pad = "  " * indent
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if _is_plain(entry):
                lines.append(f"{pad}- {_title(str(key))}: {_plain(entry)}")
            else:
                lines += [f"{pad}- {_title(str(key))}:", *_lines(entry, indent + 1)]
        return lines
    if isinstance(value, list | tuple):
        if all(_is_plain(entry) for entry in value) and indent:
            return [f"{pad}- {', '.join(_plain(entry) for entry in value)}"] if value else [f"{pad}- none"]
        for entry in value:
            lines += [f"{pad}- {_plain(entry)}"] if _is_plain(entry) else _lines(entry, indent + 1)
        return lines
    return [_plain(value)]


def _is_plain(value: Any) -> bool:
    return not isinstance(value, Mapping | list | tuple)


def _plain(value: Any) -> str:
    if value is None:
        return "not measured"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
