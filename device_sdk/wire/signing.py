"""What a device signs, and the headers that carry it.

The signed bytes bind method, path, the round named by the path (or ``-``), body hash, nonce and time, so a captured
request can be neither altered, moved to another round, nor replayed after its window.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["DEVICE", "NONCE", "SIGNATURE", "TIMESTAMP", "signed_bytes"]

DEVICE = "X-Idiolect-Device"
NONCE = "X-Idiolect-Nonce"
SIGNATURE = "X-Idiolect-Signature"
TIMESTAMP = "X-Idiolect-Timestamp"


def signed_bytes(method: str, path: str, round_id: str | None, body: bytes, nonce: str, timestamp: int) -> bytes:
    """The canonical request. timestamp: seconds since the epoch."""
    fields = ("idiolect-v1", method.upper(), path, round_id or "-", sha256(body).hexdigest(), nonce, str(timestamp))
    return "\n".join(fields).encode()
