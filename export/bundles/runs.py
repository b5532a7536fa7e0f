"""From the folders that training leaves behind to a bundle, and from a bundle to a changed one. Needs no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import weights as weight_files
from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.bundle import Bundle
from device_sdk.bundle.second_moments import SecondMoments
from device_sdk.errors import BundleError, ConfigurationError
from export.bundles.writer import write_bundle
from rescoring.combination import CombinationWeights
from rescoring.words import WordList

__all__ = ["architecture_of", "bundle_run", "refresh", "rewrite"]

MODELS = ("language_model.onnx", "language_model.safetensors", "ngram.arpa", "ngram.arpa.gz")


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
    language_model.onnx, language_model.safetensors, ngram.arpa(.gz), training.json, card.json.
    card: replaces card.json; where neither is given, the card is made from training.json.
    Raises :class:`BundleError` for a missing or damaged file.
    """
    source = str(_find(folders, "weights.safetensors"))
    weights = weight_files.read(_need(folders, "weights.safetensors"), source)
    architecture = architecture_of(weights, source)
    words = WordList.parse(_need(folders, "words.txt").decode())
    training = _portable(_json(folders, "training.json") or {})
    return write_bundle(
        out,
        name=name,
        version=version,
        architecture=architecture,
        weights=weights,
        tokenizer_model=_need(folders, "tokenizer.model"),
        words=words,
        background=_background(folders, words),
        combination=CombinationWeights.from_mapping(_json(folders, "rescoring.json") or {}),
        card=card or _json(folders, "card.json") or _card(training),
        licence=licence,
        models={model: content for model in MODELS if (content := _read(folders, model)) is not None},
        training=training,
    )


def rewrite(
    bundle: Bundle,
    out: str | Path,
    *,
    version: str | None = None,
    combination: CombinationWeights | None = None,
    second_moments: SecondMoments | None = None,
    created: str | None = None,
) -> Path:
    """Write ``bundle`` again with other weights of scores, second moments or version; ``out`` may be where it
    lies."""

    def content(name: str) -> bytes:
        return bundle.file(name).read_bytes()

    return write_bundle(
        out,
        name=bundle.manifest.name,
        version=version or bundle.version,
        architecture=bundle.architecture,
        weights=bundle.weights,
        tokenizer_model=content("tokenizer.model"),
        words=bundle.words,
        background=bundle.background,
        combination=combination or bundle.combination,
        card=json.loads(content("card.json")),
        licence=content("LICENSE").decode(),
        models={model: content(model) for model in MODELS if bundle.has(model)},
        second_moments=second_moments or bundle.second_moments,
        training=bundle.manifest.training,
        features=bundle.features,
        created=created,
    )


def refresh(bundle: Bundle, out: str | Path, *, version: str | None = None) -> Path:
    """Write ``bundle`` again with the graphs that this version of idiolect builds for its architecture; the rest stays.

    version: of the weights; where given, the new bundle is dated now. ``out`` may be where the bundle lies.
    """
    return rewrite(bundle, out, version=version, created=None if version else bundle.manifest.created)


def _find(folders: Sequence[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _read(folders: Sequence[Path], name: str) -> bytes | None:
    path = _find(folders, name)
    return None if path is None else path.read_bytes()


def _need(folders: Sequence[Path], name: str) -> bytes:
    content = _read(folders, name)
    if content is None:
        raise BundleError(f"{name}: found in none of {', '.join(str(folder) for folder in folders)}; train it first")
    return content


def _json(folders: Sequence[Path], name: str) -> dict[str, Any] | None:
    content = _read(folders, name)
    if content is None:
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


def _background(folders: Sequence[Path], words: WordList) -> NDArray[np.float64]:
    content = _read(folders, "background.safetensors")
    if content is None:
        return np.full(len(words), 1.0 / len(words))
    tensors = weight_files.read(content, str(_find(folders, "background.safetensors")))
    return np.asarray(tensors.get("unigram"), np.float64)


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
