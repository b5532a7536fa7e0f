"""Where the keys of signed updates lie, and for how long a signature is good."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from device_sdk.errors import ConfigurationError

__all__ = ["UpdateSettings"]

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class UpdateSettings:
    """folder: ``keys`` with the online keys and ``roots`` with every signed root, as ``idiolect updates init`` makes
    them. passphrase: of keys that are encrypted. timestamp, snapshot, targets: lifetime of a signature in seconds; each
    is made anew when half of it is over, so a server may be down for that long before devices refuse its updates."""

    folder: Path
    passphrase: str | None = field(default=None, repr=False)
    timestamp: float = DAY
    snapshot: float = 7 * DAY
    targets: float = 30 * DAY

    def __post_init__(self) -> None:
        for name in ("timestamp", "snapshot", "targets"):
            value = getattr(self, name)
            if not value >= 2:
                raise ConfigurationError(f"updates.{name}: found {value!r}, expected at least 2 seconds")
