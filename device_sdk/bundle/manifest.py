"""The manifest of a bundle: what it is, how big every file is, and what hash it must have."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import BundleError, ConfigurationError
from device_sdk.features.logmel import FeatureSettings

__all__ = ["FORMAT_VERSION", "MANIFEST", "OPTIONAL_FILES", "REQUIRED_FILES", "FileEntry", "Manifest", "parse"]

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
REQUIRED_FILES = (
    "encoder.onnx",
    "predictor.onnx",
    "joiner.onnx",
    "training.onnx",
    "weights.safetensors",
    "tokenizer.model",
    "words.txt",
    "background.safetensors",
    "rescoring.json",
    "card.json",
    "MODEL_CARD.md",
    "LICENSE",
)
OPTIONAL_FILES = (
    "encoder.int8.onnx",
    "predictor.int8.onnx",
    "joiner.int8.onnx",
    "language_model.onnx",
    "language_model.safetensors",
    "ngram.arpa",
    "ngram.arpa.gz",
)


class FileEntry(BaseModel):
    """One file. sha256: hex; size: bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Manifest(BaseModel):
    """``manifest.json``.

    version: of the weights and everything learned; format_version: of this layout.
    created: UTC, ISO 8601. architecture, features: sizes and settings by name. files: path inside the bundle -> entry.
    training: how the weights came about; free-form.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: int
    name: str = Field(min_length=1, max_length=128)
    version: str = Field(min_length=1, max_length=128)
    created: str
    architecture: dict[str, int]
    features: dict[str, float | int]
    files: dict[str, FileEntry]
    training: dict[str, Any] = Field(default_factory=dict)

    @field_validator("files")
    @classmethod
    def _inside(cls, files: dict[str, FileEntry]) -> dict[str, FileEntry]:
        for name in files:
            if not is_inside(name):
                raise ValueError(f"file name {name!r} leaves the bundle's folder")
        return files

    def read_architecture(self, source: str) -> Architecture:
        """Raises :class:`BundleError` where a size is missing, unknown or impossible."""
        try:
            return Architecture(**self.architecture)
        except (TypeError, ConfigurationError) as error:
            raise BundleError(f"{source}: field architecture: {error}") from error

    def read_features(self, source: str) -> FeatureSettings:
        try:
            return FeatureSettings(**self.features)  # type: ignore[arg-type]
        except (TypeError, ConfigurationError) as error:
            raise BundleError(f"{source}: field features: {error}") from error

    def to_bytes(self) -> bytes:
        return (self.model_dump_json(indent=2) + "\n").encode()


def parse(content: bytes, source: str) -> Manifest:
    """Read and check a manifest. Raises :class:`BundleError` naming ``source`` and the field."""
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(whole file)"
        raise BundleError(f"{source}: field {field}: {first['msg']}") from error
    if manifest.format_version != FORMAT_VERSION:
        raise BundleError(
            f"{source}: field format_version: found {manifest.format_version}, expected {FORMAT_VERSION}; "
            "update idiolect, or export the bundle with this version"
        )
    for name in REQUIRED_FILES:
        if name not in manifest.files:
            raise BundleError(f"{source}: field files: {name!r} is missing, a bundle needs it; export the bundle again")
    architecture, features = manifest.read_architecture(source), manifest.read_features(source)
    if architecture.mel_bins != features.mel_bins:
        raise BundleError(
            f"{source}: field features.mel_bins: found {features.mel_bins}, "
            f"expected architecture.mel_bins, {architecture.mel_bins}"
        )
    return manifest


def is_inside(name: str) -> bool:
    """Whether a path of a manifest or zip stays inside the bundle on every operating system."""
    path = PurePosixPath(name)
    ordinary = re.fullmatch(r"[A-Za-z0-9._\-/]+", name) is not None
    return ordinary and not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."
