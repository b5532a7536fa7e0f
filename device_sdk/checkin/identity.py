"""Who a device is to a server: an Ed25519 key made on the device, and the id the server gave it."""

import base64
import json
import secrets
import time
from dataclasses import dataclass, field, replace
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from device_sdk.checks import reading
from device_sdk.state import Store
from device_sdk.wire import signing

FARTHEST = 7 * 24 * 3600.0
"""Seconds by which a device corrects its clock at most."""


@dataclass(frozen=True, slots=True)
class Identity:
    """private_key: 32 raw bytes. device_id: as the server named it; None before enrolment. server: its URL. token: that
    it was enrolled with, so that a device finds back to a server that lost it; None where it is not known. clock:
    seconds by which the server's clock is ahead of this device's."""

    private_key: bytes
    server: str
    device_id: str | None = None
    token: str | None = field(default=None, repr=False)
    clock: float = 0.0

    @property
    def public_key(self) -> str:
        """Raw Ed25519 public key, base64."""
        return base64.b64encode(self.signing_key().public_key().public_bytes_raw()).decode()

    def signing_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.private_key)


def create(store: Store, server: str) -> Identity:
    """A fresh key for ``server``, kept in the state before it is used, so that a retried enrolment is the same one."""
    return _keep(store, Identity(secrets.token_bytes(32), server))


def keep_id(store: Store, identity: Identity, device_id: str, token: str | None = None) -> Identity:
    """The identity with the id the server gave for ``token``, kept in the state."""
    return _keep(store, replace(identity, device_id=device_id, token=token))


def correct_clock(store: Store, identity: Identity, server_time: float) -> Identity | None:
    """The identity that signs by the server's clock, kept in the state; None where the two are too far apart to be
    taken for a clock that is off. server_time: seconds since the epoch. Only requests are signed by it: what has
    expired is told by the device's own clock. Without the bound, whoever answers could get some for next year."""
    clock = server_time - time.time()
    return None if abs(clock) > FARTHEST else _keep(store, replace(identity, clock=clock))


def load(store: Store, server: str) -> Identity | None:
    """The identity at ``server``, None where there is none. Every server knows the device by another key."""
    content = store.get("identity", server_name(server))
    if content is None:
        return None
    with reading(f"identity/{server_name(server)}"):
        fields = json.loads(content)
        key, clock = base64.b64decode(fields["private_key"]), float(fields.get("clock", 0.0))
        if not abs(clock) <= FARTHEST:
            raise ValueError(f"clock: found {clock}, expected {FARTHEST:.0f} s at most")
        return Identity(key, server, fields["device_id"], fields.get("token"), clock)


def signed_headers(identity: Identity, method: str, path: str, round_id: str | None, body: bytes) -> dict[str, str]:
    """Headers that sign one request: every time a fresh nonce and time (since the epoch, by the server's clock)."""
    nonce = secrets.token_urlsafe(18)
    timestamp = max(0, int(time.time() + identity.clock))
    digest = sha256(body).hexdigest()
    message = signing.signed_digest(method, path, round_id, digest, nonce, timestamp)
    signature = identity.signing_key().sign(message)
    names = (signing.DEVICE, signing.BODY_DIGEST, signing.NONCE, signing.TIMESTAMP, signing.SIGNATURE)
    values = (identity.device_id or "", digest, nonce, str(timestamp), base64.b64encode(signature).decode())
    return dict(zip(names, values, strict=True))


def _keep(store: Store, identity: Identity) -> Identity:
    key, token = base64.b64encode(identity.private_key).decode(), identity.token
    fields = {"private_key": key, "device_id": identity.device_id, "token": token, "clock": identity.clock}
    store.put("identity", server_name(identity.server), json.dumps(fields).encode())
    return identity


def server_name(server: str) -> str:
    """How the state names a server: by a hash of its URL."""
    return sha256(server.encode()).hexdigest()[:16]
