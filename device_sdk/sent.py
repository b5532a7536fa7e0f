"""What a check-in says of a report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """One report that left the device. kind: the stream; duplicate: the server had it already; refused: why it was not
    taken, else None. Its content is back on the books then, but for counts whose sum the server may have. None also
    where a group ended without its sum once its shares may have been known: its counts are spent all the same."""

    report_id: str
    round_id: str
    kind: str
    size: int
    duplicate: bool = False
    refused: str | None = None
