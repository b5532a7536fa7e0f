"""The manifest of a bundle: what it is, how big every file is, and what hash it must have."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from pathlib import PurePosixPath
from typing import Any

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.streaming import AnyArchitecture, StreamingArchitecture
from device_sdk.errors import BundleError, ConfigurationError
from device_sdk.features.logmel import FeatureSettings

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
REQUIRED_FILES = (
    "encoder.onnx",
    "predictor.onnx",
    "joiner.onnx",
    "weights.safetensors",
    "tokenizer.model",
    "words.txt",
    "background.safetensors",
    "rescoring.json",
    "card.json",
    "MODEL_CARD.md",
    "LICENSE",
)
_NAME_LENGTH = 128
AGAIN = "take the bundle from its source again"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file. sha256: hex; size: bytes."""

    sha256: str
    size: int

    @classmethod
    def of(cls, content: bytes) -> FileEntry:
        return cls(hashlib.sha256(content).hexdigest(), len(content))

    def check(self, content: bytes, source: str, remedy: str = AGAIN) -> None:
        """Raises :class:`BundleError` where the content is another one."""
        found = self.of(content)
        if found != self:
            raise BundleError(
                f"{source}: {found.size} bytes with sha256 {found.sha256}, expected {self.size} with {self.sha256}; "
                f"{remedy}"
            )


@dataclass(frozen=True, slots=True)
class Manifest:
    """``manifest.json``. version: of the weights and everything learned; format_version: of this layout. created: UTC,
    ISO 8601. architecture, features: by name. files: path inside the bundle -> entry. training: free-form."""

    format_version: int
    name: str
    version: str
    created: str
    architecture: dict[str, Any]
    features: dict[str, float | int | str | bool]
    files: dict[str, FileEntry]
    training: dict[str, Any] = field(default_factory=dict)

    def read_architecture(self, source: str) -> AnyArchitecture:
        """Raises :class:`BundleError` where a size is missing, unknown or impossible."""
        try:
            if self.architecture.get("kind") == "streaming":
                return StreamingArchitecture.from_mapping(self.architecture)
            return Architecture(**self.architecture)
        except (TypeError, ConfigurationError) as error:
            raise BundleError(f"{source}: field architecture: {error}") from error

    def read_features(self, source: str) -> FeatureSettings:
        try:
            return FeatureSettings(**self.features)  # type: ignore[arg-type]
        except (TypeError, ConfigurationError) as error:
            raise BundleError(f"{source}: field features: {error}") from error

    def to_bytes(self) -> bytes:
        return (json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n").encode()


def parse(content: bytes, source: str) -> Manifest:
    """Read and check a manifest. Raises :class:`BundleError` naming ``source`` and the field."""
    manifest = _read(content, source)
    if manifest.format_version != FORMAT_VERSION:
        raise BundleError(
            f"{source}: field format_version: found {manifest.format_version}, expected {FORMAT_VERSION}; "
            "update idiolect, or export the bundle with this version"
        )
    kind = "training.output.onnx" if manifest.architecture.get("kind") == "streaming" else "training.onnx"
    for name in (*REQUIRED_FILES, kind):
        if name not in manifest.files:
            raise BundleError(f"{source}: field files: {name!r} is missing, a bundle needs it; export the bundle again")
    architecture, features = manifest.read_architecture(source), manifest.read_features(source)
    if architecture.mel_bins != features.mel_bins:
        raise BundleError(
            f"{source}: field features.mel_bins: found {features.mel_bins}, "
            f"expected architecture.mel_bins, {architecture.mel_bins}"
        )
    return manifest


def _read(content: bytes, source: str) -> Manifest:
    """The fields, each of its type; by hand, since a library for this takes a third of the time to start."""

    def expect(holds: bool, name: str, found: object, expected: str) -> None:
        if not holds:
            shown = repr(found) if len(repr(found)) <= _NAME_LENGTH else type(found).__name__
            raise BundleError(f"{source}: field {name}: found {shown}, expected {expected}")

    try:
        read = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{source}: field (whole file): not JSON ({error})") from error
    expect(isinstance(read, dict), "(whole file)", read, "a JSON object")
    known = {each.name for each in fields(Manifest)}
    for name in read:
        expect(name in known, name, read[name], f"no such field; known are {', '.join(sorted(known))}")
    for name in known - {"training"}:
        expect(name in read, name, None, "a value")
    expect(type(read["format_version"]) is int, "format_version", read["format_version"], "a whole number")
    for name in ("name", "version", "created"):
        value = read[name]
        expect(isinstance(value, str) and 0 < len(value) <= _NAME_LENGTH, name, value, "1 to 128 characters")
    for name in ("architecture", "features", "files", "training"):
        expect(isinstance(read.get(name, {}), dict), name, read.get(name), "a JSON object")
    for name, value in read["architecture"].items() if read["architecture"].get("kind") != "streaming" else ():
        expect(type(value) is int, f"architecture.{name}", value, "a whole number")
    for name, value in read["features"].items():
        plain = isinstance(value, int | str) or (isinstance(value, float) and isfinite(value))
        expect(plain, f"features.{name}", value, "a finite number, a word, true or false")
    for name, entry in read["files"].items():
        place = f"files.{name}"
        expect(is_inside(name), place, name, "a path inside the folder; this one leaves the bundle's folder")
        expect(isinstance(entry, Mapping) and entry.keys() == {"sha256", "size"}, place, entry, "sha256 and size")
        digest = entry["sha256"]
        hexadecimal = isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest) is not None
        expect(hexadecimal, f"{place}.sha256", digest, "64 hexadecimal digits")
        expect(type(entry["size"]) is int and entry["size"] >= 0, f"{place}.size", entry["size"], "a size in bytes")
    return Manifest(**{**read, "files": {name: FileEntry(**entry) for name, entry in read["files"].items()}})


def is_inside(name: str) -> bool:
    """Whether a path of a manifest or zip stays inside the bundle on every operating system."""
    path = PurePosixPath(name)
    ordinary = re.fullmatch(r"[A-Za-z0-9._\-/]+", name) is not None
    return ordinary and not path.is_absolute() and ".." not in path.parts and str(path) == name and name != "."
