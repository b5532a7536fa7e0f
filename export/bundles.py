"""Writes bundles, from what training leaves behind or from others: the same input gives the same bytes, and a reader
never sees half of one. Needs no torch. The model card is data first (``card.json``), and prose made from it."""

import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import piece_ngram as piece_ngrams
from device_sdk.bundle import second_moments as second_moment_files
from device_sdk.bundle import weights as weight_files
from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.bundle import Bundle
from device_sdk.bundle.manifest import FORMAT_VERSION, MANIFEST, FileEntry, Manifest, parse
from device_sdk.bundle.piece_ngram import PIECE_NGRAM_FILE
from device_sdk.bundle.second_moments import SECOND_MOMENTS_FILE, SecondMoments
from device_sdk.bundle.streaming import AnyArchitecture, StreamingArchitecture
from device_sdk.commands.output import usual_mode
from device_sdk.errors import BundleError, ConfigurationError
from device_sdk.features.logmel import FeatureSettings
from device_sdk.runtimes import ctc as ctc_heads
from device_sdk.runtimes import language_model as language_models
from device_sdk.runtimes.ctc import FILE as CTC_FILE
from device_sdk.runtimes.language_model import FILE as LANGUAGE_MODEL_FILE
from export.graphs import build_graphs
from export.widening import widened
from rescoring.combination import CombinationWeights
from rescoring.words import WordList

_FIRST = ("description", "data", "voices", "licences", "command", "seed", "figures", "limits")


def write_bundle(
    out: str | Path,
    *,
    name: str,
    version: str,
    architecture: AnyArchitecture,
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
    graphs: Mapping[str, bytes] | None = None,
    created: str | None = None,
) -> Path:
    """Write a bundle, then open it as a device would.

    out: a folder, or a file ending in ``.zip``; a bundle that stands there, even a damaged one, or an empty folder is
    replaced in one step. weights: every parameter and constant of the architecture, float32, LSTMs in ONNX layout.
    background: [n] float64 over ``words``, positive, sums to 1. models: contents of language models and n-grams by the
    names of their files. card: see :func:`render`. second_moments: how large gradients usually are, see
    :mod:`device_sdk.bundle.second_moments`. training: how the weights came about, JSON values. graphs: of a streaming
    architecture; an LSTM's are built. created: UTC, ISO 8601; now where ``None``. Returns ``out``. Raises
    :class:`BundleError` for weights or files that a device would refuse, or where ``out`` is something else than a
    bundle, or a bundle with files that its manifest does not name; what stood there is then untouched."""
    target = Path(out)
    _check_replaceable(target)
    weight_files.check(architecture, weights, "weights to export")
    if isinstance(architecture, Architecture):
        graphs = build_graphs(architecture, (models or {}).get(CTC_FILE))
    files: dict[str, bytes] = {
        **(graphs or {}),
        "weights.safetensors": weight_files.serialize(weight_files.halved(weights)),
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
        architecture=asdict(architecture) if isinstance(architecture, Architecture) else architecture.to_mapping(),
        features=asdict(features),
        files={path: FileEntry.of(content) for path, content in sorted(files.items())},
        training=dict(training or {}),
    )
    files[MANIFEST] = manifest.to_bytes()
    target.parent.mkdir(parents=True, exist_ok=True)
    (_write_zip if target.suffix == ".zip" else _write_folder)(target, files)
    return target


def _check_replaceable(target: Path) -> None:
    """Raise :class:`BundleError` where writing would delete something else than a bundle, or cannot succeed."""
    if target.is_dir():
        here = Path.cwd()
        if target.resolve() in (here, *here.parents):
            raise BundleError(f"{target}: is the folder that this process stands in, or above it; name another folder")
        if target.suffix == ".zip":
            raise BundleError(f"{target}: is a folder, expected a file for a zip; choose another path or remove it")
        if not any(target.iterdir()):
            return
    if target.exists() and (reason := _why_no_bundle(target)) is not None:
        raise BundleError(f"{target}: exists and is no bundle ({reason}); choose another path or remove it")


def _why_no_bundle(path: Path) -> str | None:
    """What shows that this folder or file holds more or else than a bundle; None for a bundle, however damaged.
    The manifest comes first: only a folder that has one is searched, since others may be as large as a disk."""
    held: Iterable[str]
    try:
        if path.is_dir():
            content = (path / MANIFEST).read_bytes() if (path / MANIFEST).is_file() else None
            files = (each for each in path.rglob("*") if each.is_symlink() or not each.is_dir())
            held = (each.relative_to(path).as_posix() for each in files)
        else:
            with zipfile.ZipFile(path) as archive:
                held = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
                content = archive.read(MANIFEST) if MANIFEST in held else None
        if content is None:
            first = next(iter(held), None)
            return f"no {MANIFEST}" + (f", but {first!r}" if first else "")
        named = {MANIFEST, *parse(content, MANIFEST).files}
        other = min((name for name in held if name not in named), default=None)
    except (BundleError, zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
        return str(error)
    return None if other is None else f"its manifest does not name {other!r}"


def _write_folder(target: Path, files: Mapping[str, bytes]) -> None:
    workshop = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = workshop / "old"
    try:
        fresh = workshop / "new"
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        Bundle.open(fresh)
        if target.exists():
            target.rename(old)
        fresh.rename(target)
    finally:
        if os.path.lexists(old) and not os.path.lexists(target):  # stopped between the two
            old.rename(target)  # where even this fails, the workshop stays, and the old bundle in it
        shutil.rmtree(workshop, ignore_errors=True)


def _write_zip(target: Path, files: Mapping[str, bytes]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}-", suffix=".zip", dir=target.parent)
    os.close(handle)
    fresh = Path(name)
    try:
        with zipfile.ZipFile(fresh, "w") as archive:
            for path, content in sorted(files.items()):
                entry = zipfile.ZipInfo(path, date_time=(1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
        Bundle.open(fresh)
        fresh.chmod(usual_mode(target))
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _json_bytes(values: Mapping[str, Any], sort: bool = False) -> bytes:
    """A card's fields stay in the order they have: prose made from the file again is the same."""
    return (json.dumps(values, indent=2, sort_keys=sort, ensure_ascii=False) + "\n").encode()


def render(name: str, version: str, card: Mapping[str, Any]) -> str:
    """Markdown of a card: a heading for each field, lists and tables below it; known fields come first. card: JSON
    values by field; usual are description, data, voices, licences, command, seed, figures, limits."""
    order = [key for key in _FIRST if key in card] + sorted(key for key in card if key not in _FIRST)
    lines = [f"# {name} {version}", ""]
    for key in order:
        lines += [f"## {_title(key)}", "", *_lines(card[key]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _title(key: str) -> str:
    title = key.replace("_", " ")
    return title[:1].upper() + title[1:]


def _lines(value: Any, indent: int = 0) -> list[str]:
    if isinstance(value, Mapping) and value and indent == 0 and all(_is_plain(entry) for entry in value.values()):
        return ["| | |", "|---|---|", *(f"| {_title(str(key))} | {_plain(entry)} |" for key, entry in value.items())]
    lines, pad = list[str](), "  " * indent
    if isinstance(value, Mapping):
        for key, entry in value.items():
            lines.append(f"{pad}- {_title(str(key))}:{f' {_plain(entry)}' if _is_plain(entry) else ''}")
            lines += [] if _is_plain(entry) else _lines(entry, indent + 1)
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


MODELS = (LANGUAGE_MODEL_FILE, "ngram.arpa", "ngram.arpa.gz", PIECE_NGRAM_FILE, CTC_FILE)


def architecture_of(weights: Mapping[str, NDArray[np.generic]], source: str) -> Architecture:
    """The sizes that a weights file's shapes spell out. Raises :class:`BundleError` where they fit no architecture."""
    shapes = {name: value.shape for name, value in weights.items()}
    try:
        (bins,), (joint, size) = shapes["features.mean"], shapes["joiner.encoder.weight"]
        pieces, embedding = shapes["predictor.embedding"]
        return Architecture(
            encoder_layers=sum(name.startswith("encoder.") and name.endswith(".R") for name in shapes),
            encoder_size=size,
            predictor_layers=sum(name.startswith("predictor.") and name.endswith(".R") for name in shapes),
            predictor_size=shapes["predictor.0.R"][1],
            embedding_size=embedding,
            joiner_size=joint,
            pieces=pieces,
            mel_bins=bins,
            subsampling_factor=shapes["encoder.0.W"][1] // bins,
        )
    except KeyError as error:
        raise BundleError(f"{source}: tensor {error.args[0]!r} is missing, so the architecture is unknown") from error
    except (ValueError, IndexError, ConfigurationError) as error:
        raise BundleError(f"{source}: shapes fit no architecture ({error})") from error


def bundle_run(
    folders: Sequence[Path],
    out: str | Path,
    *,
    name: str,
    version: str,
    licence: str,
    card: Mapping[str, Any] | None = None,
) -> Path:
    """Write the bundle of a training run.

    folders: where its files lie, the first that holds a file wins. Needed: weights.safetensors, tokenizer.model,
    words.txt. Taken where present: background.safetensors (otherwise every word is equally likely), rescoring.json,
    language_model.onnx, pieces.ngram.safetensors, ngram.arpa(.gz), ctc.onnx, training.json, card.json. card: replaces
    card.json; where neither is given, the card is made from training.json. Raises :class:`BundleError` for a missing or
    damaged file."""
    source = str(_find(folders, "weights.safetensors"))
    weights = weight_files.read(_need(folders, "weights.safetensors"), source)
    architecture = architecture_of(weights, source)
    words = WordList.parse(_need(folders, "words.txt").decode())
    background = np.full(len(words), 1.0 / len(words))
    if content := _read(folders, "background.safetensors"):
        tensors = weight_files.read(content, str(_find(folders, "background.safetensors")))
        background = np.asarray(tensors.get("unigram"), np.float64)
    training = _portable(_json(folders, "training.json") or {})
    return write_bundle(
        out,
        name=name,
        version=version,
        architecture=architecture,
        weights=weights,
        tokenizer_model=_need(folders, "tokenizer.model"),
        words=words,
        background=background,
        combination=CombinationWeights.from_mapping(_json(folders, "rescoring.json") or {}),
        card=card or _json(folders, "card.json") or _card(training),
        licence=licence,
        models={model: held for model in MODELS if (held := _read(folders, model)) is not None},
        training=training,
    )


def rewrite(bundle: Bundle, out: str | Path, **changes: Any) -> Path:
    """Write ``bundle`` again with other arguments of :func:`write_bundle`; ``out`` may be where it lies."""

    def content(name: str) -> bytes:
        return bundle.file(name).read_bytes()

    parts: dict[str, Any] = {
        "name": bundle.manifest.name,
        "version": bundle.version,
        "architecture": bundle.architecture,
        "weights": bundle.weights,
        "tokenizer_model": content("tokenizer.model"),
        "words": bundle.words,
        "background": bundle.background,
        "combination": bundle.combination,
        "card": json.loads(content("card.json")),
        "licence": content("LICENSE").decode(),
        "models": _models(bundle),
        "second_moments": bundle.second_moments,
        "training": bundle.manifest.training,
        "features": bundle.features,
    }
    if isinstance(bundle.architecture, StreamingArchitecture):
        brought = {name for name in bundle.manifest.files if name.endswith(".onnx")} - set(MODELS)
        parts["graphs"] = {name: content(name) for name in brought}
    return write_bundle(out, **(parts | changes))


def refresh(bundle: Bundle, out: str | Path, *, version: str | None = None) -> Path:
    """Write ``bundle`` again with the graphs that this version of idiolect builds for its architecture; the rest stays.
    version: of the weights; where given, the new bundle is dated now. ``out`` may be where the bundle lies."""
    return rewrite(bundle, out, **({"version": version} if version else {"created": bundle.manifest.created}))


def trained(path: Path) -> tuple[Mapping[str, NDArray[Any]], bytes]:
    """Parameters and tokenizer of a bundle, or of the folder of a run. Raises BundleError for what is neither."""
    if (path / "weights.safetensors").is_file() and not (path / MANIFEST).is_file():
        source = path / "weights.safetensors"
        if not (path / "tokenizer.model").is_file():
            raise BundleError(f"{path}: has weights.safetensors but no tokenizer.model; expected the folder of a run")
        return weight_files.read(source.read_bytes(), str(source)), (path / "tokenizer.model").read_bytes()
    bundle = Bundle.open(path)
    return bundle.weights, bundle.file("tokenizer.model").read_bytes()


def mean(
    bundle: Bundle, shares: Mapping[Path, float], out: str | Path, *, version: str, models: Sequence[Path] = ()
) -> Path:
    """Write ``bundle`` with the mean of its weights and of those that were trained further from them, or beside them
    from the same ones: often better than each. shares: bundle or folder of a run -> its share; the bundle has the rest.
    models: files of an n-gram over these pieces, of a neural language model of these words or of a CTC head, named as
    in a bundle, to take the place of the bundle's; with them there need be no shares. Its card no longer has figures,
    which were of other weights; its manifest names the parts by the last names of their paths, numbered where several
    have the same. Raises :class:`BundleError` for weights of other sizes or pieces and for files that are no such
    model, :class:`ConfigurationError` for shares that are none."""
    rest = 1.0 - sum(shares.values())
    if not (shares or models) or not all(share > 0.0 for share in shares.values()) or rest < -1e-9:
        given = ", ".join(f"{path}:{share:g}" for path, share in shares.items()) or "none"
        raise ConfigurationError(f"shares: found {given}; expected each above 0, at most 1 together")
    total = {name: rest * value.astype(np.float64) for name, value in bundle.weights.items()}
    for path, share in shares.items():
        weights, pieces = trained(path)
        if pieces != bundle.file("tokenizer.model").read_bytes():
            raise BundleError(f"{path}: has other pieces than {bundle.path}; expected what was trained from it")
        weight_files.check(bundle.architecture, weights, str(path))
        total = {name: value + share * weights[name] for name, value in total.items()}
    parts = {f"{bundle.manifest.name} {bundle.version}": round(rest, 9)}
    for path, share in shares.items():
        parts[_free(path.name, parts)] = share
    return rewrite(
        bundle,
        out,
        version=version,
        weights={name: _rounded(value) for name, value in total.items()},
        models=_models(bundle) | {path.name: _model(path, bundle) for path in models},
        card=_card_without_figures(bundle),
        training=dict(bundle.manifest.training) | ({"mean": parts} if shares else {}),
    )


def widen(bundle: Bundle, out: str | Path, cells: int, *, version: str) -> Path:
    """Write ``bundle`` again with ``cells`` in every layer of the encoder, more than it has: it hears as it did, and
    can be trained further. How large its gradients usually are is left out, its CTC head, which knows the old network,
    and its card's figures. Raises :class:`BundleError` for an encoder that the bundle brings,
    :class:`ConfigurationError` for no more cells."""
    architecture = bundle.architecture
    if not isinstance(architecture, Architecture):
        raise BundleError(f"{bundle.path}: brings an encoder of its own; only idiolect's own networks can be widened")
    if cells <= architecture.encoder_size:
        found = f"found {cells}, expected more than the {architecture.encoder_size} of {bundle.path}"
        raise ConfigurationError(f"cells: {found}")
    return rewrite(
        bundle,
        out,
        version=version,
        architecture=replace(architecture, encoder_size=cells),
        weights={name: _rounded(value) for name, value in widened(bundle.weights, architecture, cells).items()},
        card=_card_without_figures(bundle),
        models={name: content for name, content in _models(bundle).items() if name != CTC_FILE},
        second_moments=None,
        training=dict(bundle.manifest.training) | {"widened": f"{bundle.manifest.name} {bundle.version}"},
    )


def _models(bundle: Bundle) -> dict[str, bytes]:
    return {model: bundle.file(model).read_bytes() for model in MODELS if bundle.has(model)}


def _model(path: Path, bundle: Bundle) -> bytes:
    """A language model that fits the bundle's pieces or words."""
    content = _need([path.parent], path.name)
    if path.name == PIECE_NGRAM_FILE:
        piece_ngrams.read(content, bundle.tokenizer.size, str(path))
    elif path.name == LANGUAGE_MODEL_FILE:
        language_models.open_graph(content, bundle.words, str(path))
    elif path.name == CTC_FILE:
        ctc_heads.open_graph(content, bundle.architecture, str(path))
    else:
        expected = f"{PIECE_NGRAM_FILE}, {LANGUAGE_MODEL_FILE} or {CTC_FILE}"
        raise BundleError(f"{path}: expected a file named {expected}")
    return content


def _card_without_figures(bundle: Bundle) -> dict[str, Any]:
    """Its figures are of its own weights alone."""
    card = json.loads(bundle.file("card.json").read_bytes())
    return {key: value for key, value in card.items() if key != "figures"}


def _free(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken."""
    return name if name not in taken else next(each for n in count(2) if (each := f"{name} {n}") not in taken)


def _rounded(value: NDArray[np.floating]) -> NDArray[np.float32]:
    """To half precision, as runs end; to single precision where half has no room for a value."""
    with np.errstate(over="ignore"):
        half = value.astype(np.float16)
    return np.asarray(half if np.isfinite(half).all() else value, np.float32)


def _find(folders: Sequence[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _read(folders: Sequence[Path], name: str) -> bytes | None:
    path = _find(folders, name)
    return None if path is None else path.read_bytes()


def _need(folders: Sequence[Path], name: str) -> bytes:
    if (content := _read(folders, name)) is None:
        raise BundleError(f"{name}: found in none of {', '.join(str(folder) for folder in folders)}; train it first")
    return content


def _json(folders: Sequence[Path], name: str) -> dict[str, Any] | None:
    if (content := _read(folders, name)) is None:
        return None
    try:
        value = json.loads(content)
    except ValueError as error:
        raise BundleError(f"{_find(folders, name)}: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise BundleError(f"{_find(folders, name)}: found {type(value).__name__}, expected a JSON object")
    return value


def _portable(value: Any) -> Any:
    """The same JSON with absolute paths cut to their last part: a bundle travels, its maker's folders do not."""
    if isinstance(value, str):
        return re.sub(r"(?<![\w./-])/(?:[^\s/:]+/)*([^\s/:]+)", r"\1", value)
    if isinstance(value, Mapping):
        return {key: _portable(entry) for key, entry in value.items()}
    return [_portable(entry) for entry in value] if isinstance(value, list) else value


def _card(training: Mapping[str, Any]) -> dict[str, Any]:
    recipe = training.get("recipe") or {}
    return {
        "description": "RNN-T for English commands and short sentences, 16 kHz, lower-case words.",
        "data": training.get("data", []),
        "text": training.get("text", []),
        "voices": training.get("voices", {}),
        "command": training.get("command", "not recorded"),
        "seed": recipe.get("seed"),
        "figures": training.get("result") or {},
    }
