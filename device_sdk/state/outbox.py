"""Reports on their way: exact bytes, kept until the server acknowledges them, so that a repeat is a duplicate."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from device_sdk.checks import reading
from device_sdk.state import Store

Kind = Literal["marginals", "deltas", "words"]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """report_id: made on this device. server: whom it is for. kind: the stream. body: exactly what is sent, every time.
    restore: what goes back to the books if the round ends without it (the counts of marginals and words)."""

    report_id: str
    server: str
    kind: Kind
    round_id: str
    body: bytes
    restore: bytes = b""


def keep(store: Store, report: Outgoing) -> None:
    """Puts a report into the outbox. Call it inside the transaction that takes its content off the device's books."""
    head = {"server": report.server, "kind": report.kind, "round_id": report.round_id, "body": len(report.body)}
    text = json.dumps(head).encode()
    store.put("outbox", report.report_id, len(text).to_bytes(4, "big") + text + report.body + report.restore)


def waiting(store: Store, server: str) -> Iterator[Outgoing]:
    """Reports that wait, oldest first, each read when its turn comes: one discarded by then is not among them."""
    for name in store.names("outbox"):
        content = store.get("outbox", name)
        if content is not None and (report := _read(name, content)).server == server:
            yield report


def release(store: Store, report_id: str) -> None:
    """Takes an acknowledged or refused report out."""
    store.delete("outbox", report_id)


def discard(store: Store, kind: Kind) -> int:
    """Takes out every report of a stream, for whatever server; returns how many. Their content is not restored. A part
    in secure aggregation of that stream ends with them: what was sent of it stays masked."""
    with store.transaction():
        parts = [name for name in store.names("aggregation") if _stream(name, store.get("aggregation", name)) == kind]
        store.delete("aggregation", *parts)
        found = [name for name in store.names("outbox") if _read(name, store.get("outbox", name) or b"").kind == kind]
        store.delete("outbox", *found)
    return len(found)


def _stream(name: str, part: bytes | None) -> str:
    """Of what a device keeps of a secure aggregation."""
    with reading(f"aggregation/{name}"):
        return str(json.loads(part or b"{}")["stream"])


def _read(report_id: str, content: bytes) -> Outgoing:
    with reading(f"outbox/{report_id}"):
        start = 4 + int.from_bytes(content[:4], "big")
        head = json.loads(content[4:start])
        end = start + int(head["body"])
        return Outgoing(report_id, head["server"], head["kind"], head["round_id"], content[start:end], content[end:])
