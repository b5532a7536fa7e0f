"""What a run goes on from: a trained RNN-T, for more speech of the same kind or a narrower domain."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.bundle.weights import read as read_weights
from device_sdk.errors import BundleError


def read_start(path: Path) -> tuple[Mapping[str, NDArray[Any]], bytes]:
    """Parameters and tokenizer of a bundle, or of the folder of a run. Raises BundleError for what is neither."""
    if (path / "weights.safetensors").is_file() and not (path / "manifest.json").is_file():
        source = path / "weights.safetensors"
        if not (path / "tokenizer.model").is_file():
            raise BundleError(f"{path}: has weights.safetensors but no tokenizer.model; expected the folder of a run")
        return read_weights(source.read_bytes(), str(source)), (path / "tokenizer.model").read_bytes()
    bundle = Bundle.open(path)
    return bundle.weights, bundle.file("tokenizer.model").read_bytes()
