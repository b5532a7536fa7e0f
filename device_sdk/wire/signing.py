"""What a device signs, and the headers that carry it.

The signed bytes bind method, path, the round named by the path (or ``-``), body hash, nonce and time, so a captured
request can be neither altered, moved to another round, nor replayed after its window. The body hash is sent as a header
too, so that a server can check who sends before it reads what is sent."""

DEVICE = "X-Idiolect-Device"
BODY_DIGEST = "X-Idiolect-Body-Digest"
"""SHA-256 of the body, 64 lowercase hexadecimal digits."""
NONCE = "X-Idiolect-Nonce"
SIGNATURE = "X-Idiolect-Signature"
TIMESTAMP = "X-Idiolect-Timestamp"


def signed_digest(method: str, path: str, round_id: str | None, digest: str, nonce: str, timestamp: int) -> bytes:
    """The canonical request. digest: the body's SHA-256, in hexadecimal digits; timestamp: seconds since the epoch."""
    fields = ("idiolect-v1", method.upper(), path, round_id or "-", digest, nonce, str(timestamp))
    return "\n".join(fields).encode()
