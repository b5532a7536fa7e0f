"""Who sent a request: the Ed25519 signature over the canonical request, its time and its nonce.

The signature is over the body's hash, which a header tells: the sender is verified before the body is read, which is
then held against it."""

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, bindparam, delete, insert, select

from device_sdk.wire.signing import BODY_DIGEST, DEVICE, NONCE, SIGNATURE, TIMESTAMP, signed_digest
from server.devices.enrolment import find_device
from server.problems import Refusal
from server.storage.schema import nonces

NONCE_FORMAT = re.compile(r"[A-Za-z0-9._~+/=-]{8,128}")


@dataclass(frozen=True, slots=True)
class Sender:
    """A verified sender. digest: the SHA-256 that it signed, which its body must have. expires_at: until when its nonce
    must be remembered."""

    device_id: str
    digest: str
    nonce: str
    expires_at: float


def authenticate(
    connection: Connection,
    headers: Mapping[str, str],
    *,
    method: str,
    path: str,
    round_id: str | None,
    now: float,
    window: float,
) -> Sender:
    """Check signature and time of a request, before its body is read. The nonce is spent by the transaction that acts
    on it. Raises Refusal: 401 ``unsigned``, ``stale_time``, ``unknown_device`` or ``bad_signature``, 403
    ``device_revoked``."""
    names = (DEVICE, BODY_DIGEST, NONCE, TIMESTAMP, SIGNATURE)
    device_id, digest, nonce, stamp, signature = (headers.get(name, "") for name in names)
    for name, value in zip(names, (device_id, digest, nonce, stamp, signature), strict=True):
        if not value:
            raise Refusal(401, "unsigned", f"header {name} is missing; sign the request", name)
    if not NONCE_FORMAT.fullmatch(nonce):
        raise Refusal(401, "unsigned", "nonce: expected 8 to 128 characters of base64 or hex", NONCE)
    if not re.fullmatch(r"[0-9]{1,12}", stamp):
        raise Refusal(401, "unsigned", "time: expected whole seconds since the epoch", TIMESTAMP)
    timestamp = int(stamp)
    if abs(timestamp - now) > window:
        detail = f"time: found {timestamp}, expected within {window:.0f} s of the server's {now:.0f}; set the clock"
        raise Refusal(401, "stale_time", detail, TIMESTAMP)
    device = find_device(connection, device_id)
    if device is None:
        raise Refusal(401, "unknown_device", "this device is not enrolled here", DEVICE)
    if device.revoked_at is not None:
        raise Refusal(403, "device_revoked", "this device was revoked", DEVICE)
    message = signed_digest(method, path, round_id, digest, nonce, timestamp)
    try:
        raw = b64decode(signature.encode(), validate=True)
        Ed25519PublicKey.from_public_bytes(device.public_key).verify(raw, message)
    except (ValueError, InvalidSignature) as error:
        raise Refusal(401, "bad_signature", _OTHER, SIGNATURE) from error
    return Sender(device_id, digest, nonce, timestamp + window)


def check_body(body: bytes, sender: Sender) -> None:
    """Raises Refusal (401 ``bad_signature``) where a body is not the one that was signed."""
    if sha256(body).hexdigest() != sender.digest:
        raise Refusal(401, "bad_signature", _OTHER, SIGNATURE)


_OTHER = "the signature does not belong to this method, path, round, body, nonce and time"


def spend_nonce(connection: Connection, sender: Sender, now: float) -> None:
    """Remember a nonce until its request could no longer be replayed. Raises Refusal (409) if it was spent before."""
    connection.execute(_FORGET, {"now": now})
    if connection.execute(_SEEN, {"sender": sender.device_id, "spent": sender.nonce}).first() is not None:
        raise Refusal(409, "replayed", "this request was received before; sign it anew", NONCE)
    connection.execute(_SPEND, {"device_id": sender.device_id, "nonce": sender.nonce, "expires_at": sender.expires_at})


# Every request needs these: they are built once.
_FORGET = delete(nonces).where(nonces.c.expires_at < bindparam("now"))
_SEEN = select(nonces.c.nonce).where(nonces.c.device_id == bindparam("sender"), nonces.c.nonce == bindparam("spent"))
_SPEND = insert(nonces)
