"""How a device becomes known: it shows the enrolment token and its public key, and its id is bound to that key."""

from __future__ import annotations

import logging
from base64 import b64decode
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from device_sdk.wire.messages import Enrol
from server.devices.tokens import find_enrolment_token, use, used_up
from server.problems import Refusal
from server.storage.schema import devices

__all__ = ["count_devices", "enrol", "find_device", "list_devices", "read_public_key", "revoke", "same_secret"]

log = logging.getLogger("idiolect.server")


def enrol(
    connection: Connection, public_key: bytes, now: float, token: str | None = None, uses: int | None = None
) -> str:
    """Register a key. Returns the device id, a digest of the key: enrolling again after a lost answer changes nothing,
    and uses up nothing of the token.

    token: the one that was shown, None for the server's own. uses: how many devices that one lets in. Raises Refusal:
    401 ``bad_token``; 403 ``device_revoked`` for a key that was revoked, ``token_revoked``, ``token_expired``,
    ``token_used_up``.
    """
    shown = None if token is None else find_enrolment_token(connection, token)
    device_id = sha256(public_key).hexdigest()[:32]
    row = find_device(connection, device_id)
    if row is None:
        if shown is not None:
            use(connection, shown, now)
        elif uses is not None and _let_in(connection) >= uses:
            raise used_up(uses)
        name = None if shown is None else shown.name
        connection.execute(
            insert(devices).values(id=device_id, public_key=public_key, enrolled_at=now, enrolment_token=name)
        )
        log.debug("a device enrolled with %s", "the server's own token" if name is None else f"token {name}")
    elif row.revoked_at is not None:
        raise Refusal(403, "device_revoked", "this device was revoked; it needs a new key", "public_key")
    return device_id


def read_public_key(message: Enrol) -> bytes:
    """The raw key of an enrolment. Raises Refusal (422)."""
    try:
        raw = b64decode(message.public_key.encode(), validate=True)
        Ed25519PublicKey.from_public_bytes(raw)
    except (ValueError, UnicodeError) as error:
        raise Refusal(
            422, "bad_key", "public_key: expected the base64 of a raw Ed25519 key of 32 bytes", "public_key"
        ) from error
    return raw


def find_device(connection: Connection, device_id: str) -> Row[Any] | None:
    return connection.execute(_FIND, {"device_id": device_id}).first()


_FIND = select(devices).where(devices.c.id == bindparam("device_id"))


def _let_in(connection: Connection) -> int:
    """Devices that came with the server's own token, those that were revoked too."""
    query = select(func.count()).select_from(devices).where(devices.c.enrolment_token.is_(None))
    return int(connection.execute(query).scalar_one())


def list_devices(connection: Connection, after: str, limit: int) -> list[Row[Any]]:
    """By id, from the one after ``after``."""
    query = select(devices).where(devices.c.id > after).order_by(devices.c.id).limit(limit)
    return list(connection.execute(query))


def revoke(connection: Connection, device_id: str, now: float) -> None:
    """Refuse everything the device sends from now on. Raises Refusal (404)."""
    changed = connection.execute(
        update(devices).where(devices.c.id == device_id, devices.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    if changed.rowcount == 0 and find_device(connection, device_id) is None:
        raise Refusal(404, "unknown_device", f"device {device_id[:64]!r} is not enrolled", "device_id")


def count_devices(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(devices)).scalar_one())


def same_secret(found: str, expected: str) -> bool:
    """Compare two secrets in constant time, whatever characters the first holds."""
    return compare_digest(found.encode("utf-8", "replace"), expected.encode())
