"""Signed metadata of targets, snapshot and timestamp: pure functions from what is published to exact bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from securesystemslib.signer import Signer
from tuf.api.metadata import Metadata, MetaFile, Snapshot, TargetFile, Targets, Timestamp

__all__ = ["Published", "signed_snapshot", "signed_targets", "signed_timestamp"]


@dataclass(frozen=True, slots=True)
class Published:
    """One file that devices may install. path: its target's name; custom: what the signature says of it besides."""

    path: str
    length: int
    sha256: str
    custom: dict[str, Any]


def signed_targets(files: Iterable[Published], version: int, expires: float, signer: Signer) -> bytes:
    """expires: seconds since the epoch."""
    targets = {
        file.path: TargetFile(
            file.length, {"sha256": file.sha256}, file.path, {"custom": file.custom} if file.custom else None
        )
        for file in files
    }
    return _signed(Targets(version=version, expires=_moment(expires), targets=targets), signer)


def signed_snapshot(targets: bytes, targets_version: int, version: int, expires: float, signer: Signer) -> bytes:
    meta = {"targets.json": MetaFile.from_data(targets_version, targets, ["sha256"])}
    return _signed(Snapshot(version=version, expires=_moment(expires), meta=meta), signer)


def signed_timestamp(snapshot: bytes, snapshot_version: int, version: int, expires: float, signer: Signer) -> bytes:
    meta = MetaFile.from_data(snapshot_version, snapshot, ["sha256"])
    return _signed(Timestamp(version=version, expires=_moment(expires), snapshot_meta=meta), signer)


def _signed(content: Targets | Snapshot | Timestamp, signer: Signer) -> bytes:
    metadata: Metadata[Any] = Metadata(content)
    metadata.sign(signer)
    return metadata.to_bytes()


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
