"""Who a device is to a server: an Ed25519 key made on the device, and the id the server gave it."""

from __future__ import annotations

import base64
import json
import secrets
import time
from dataclasses import dataclass, replace
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from device_sdk.errors import StateError
from device_sdk.state import Store
from device_sdk.wire import signing

__all__ = ["Identity", "enrolled", "load", "new", "server_name", "signed_headers"]


@dataclass(frozen=True, slots=True)
class Identity:
    """private_key: 32 raw bytes. device_id: as the server named it; None before enrolment. server: its URL."""

    private_key: bytes
    server: str
    device_id: str | None = None

    @property
    def public_key(self) -> str:
        """Raw Ed25519 public key, base64."""
        public = Ed25519PrivateKey.from_private_bytes(self.private_key).public_key()
        return base64.b64encode(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()


def new(store: Store, server: str) -> Identity:
    """A fresh key for ``server``, kept in the state before it is used, so that a retried enrolment is the same one."""
    identity = Identity(secrets.token_bytes(32), server)
    _keep(store, identity)
    return identity


def enrolled(store: Store, identity: Identity, device_id: str) -> Identity:
    """The identity with the id the server gave, kept in the state."""
    identity = replace(identity, device_id=device_id)
    _keep(store, identity)
    return identity


def load(store: Store, server: str) -> Identity | None:
    """The identity at ``server``, None where there is none. Every server knows the device by another key."""
    content = store.get("identity", server_name(server))
    if content is None:
        return None
    try:
        fields = json.loads(content)
        return Identity(base64.b64decode(fields["private_key"]), server, fields["device_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"identity/{server_name(server)}: found an unreadable value ({error})") from error


def signed_headers(
    identity: Identity, method: str, path: str, round_id: str | None, body: bytes, now: float | None = None
) -> dict[str, str]:
    """Headers that sign one request: a fresh nonce and time (seconds since the epoch) every time it is sent."""
    nonce = secrets.token_urlsafe(18)
    timestamp = int(time.time() if now is None else now)
    message = signing.signed_bytes(method, path, round_id, body, nonce, timestamp)
    signature = Ed25519PrivateKey.from_private_bytes(identity.private_key).sign(message)
    return {
        signing.DEVICE: identity.device_id or "",
        signing.NONCE: nonce,
        signing.TIMESTAMP: str(timestamp),
        signing.SIGNATURE: base64.b64encode(signature).decode(),
    }


def _keep(store: Store, identity: Identity) -> None:
    fields = {
        "private_key": base64.b64encode(identity.private_key).decode(),
        "device_id": identity.device_id,
    }
    store.put("identity", server_name(identity.server), json.dumps(fields).encode())


def server_name(server: str) -> str:
    """How the state names a server: by a hash of its URL."""
    return sha256(server.encode()).hexdigest()[:16]
