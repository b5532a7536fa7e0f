"""What signed metadata says is current: a model, its teacher and marginals, each with length and SHA-256."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from device_sdk.errors import CheckInError
from device_sdk.wire.rollout import MILLIONTHS, arm_of

__all__ = ["Adopted", "Release", "Target", "release_of"]


@dataclass(frozen=True, slots=True)
class Adopted:
    """What a check-in brought. refused: why something that the server offers was not taken, by name."""

    new_model: bool = False
    new_marginals: bool = False
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """One file. name: of its target; version: that it is of; length: bytes; sha256: of its content, hexadecimal."""

    name: str
    version: str
    length: int
    sha256: str

    def check(self, content: bytes) -> None:
        """CheckInError: these are other bytes."""
        if len(content) != self.length:
            raise CheckInError(f"{self.name}: found {len(content)} bytes, expected {self.length} as signed")
        found = sha256(content).hexdigest()
        if found != self.sha256:
            raise CheckInError(f"{self.name}: sha256: found {found}, expected {self.sha256} as signed")


@dataclass(frozen=True, slots=True)
class Release:
    """words_digest: of the word list that the marginals are over."""

    model: Target
    teacher: Target | None
    marginals: Target
    words_digest: str


def release_of(targets: dict[str, tuple[int, dict[str, str], Any]], device_id: str = "") -> Release:
    """targets: name -> (length, hashes, custom), from metadata that was verified. device_id: this device's at the
    server: it gets the rollout's model where it belongs to the share of the devices that is to have it. CheckInError:
    it does not say which model and which marginals are current."""
    model, described = _current(targets, "models/", ".safetensors")
    tried = _tried(targets, device_id)
    if tried is not None:
        model, described = tried
    marginals, over = _current(targets, "marginals/", ".float64")
    version = described.get("teacher")
    teacher = None if version is None else _target(targets, f"models/{version}.safetensors", str(version))
    return Release(model, teacher, marginals, str(over.get("words_digest")))


def _tried(targets: dict[str, tuple[int, dict[str, str], Any]], device_id: str) -> tuple[Target, dict[str, Any]] | None:
    """The model that goes to some devices first, where this one is among them."""
    for name, (_, _, custom) in sorted(targets.items()):
        if not (name.startswith("models/") and name.endswith(".safetensors") and isinstance(custom, dict)):
            continue
        share = custom.get("rollout")  # in millionths
        version = name.removeprefix("models/").removesuffix(".safetensors")
        if isinstance(share, int) and device_id and arm_of(device_id, version, share / MILLIONTHS) == "rollout":
            return _target(targets, name, version), custom
    return None


def _current(
    targets: dict[str, tuple[int, dict[str, str], Any]], folder: str, ending: str
) -> tuple[Target, dict[str, Any]]:
    found = [
        (name, custom)
        for name, (_, _, custom) in targets.items()
        if name.startswith(folder)
        and name.endswith(ending)
        and isinstance(custom, dict)
        and custom.get("current") is True
    ]
    if len(found) != 1:
        raise CheckInError(f"targets: found {len(found)} targets {folder}* that are current, expected one")
    name, custom = found[0]
    return _target(targets, name, name.removeprefix(folder).removesuffix(ending)), custom


def _target(targets: dict[str, tuple[int, dict[str, str], Any]], name: str, version: str) -> Target:
    if name not in targets:
        raise CheckInError(f"targets: {name} is not among them")
    length, hashes, _ = targets[name]
    if "sha256" not in hashes:
        raise CheckInError(f"{name}: found hashes {sorted(hashes)}, expected sha256")
    return Target(name, version, length, hashes["sha256"])
