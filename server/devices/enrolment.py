"""How a device becomes known: it shows the enrolment token and its public key, and its id is bound to that key."""

import logging
from base64 import b64decode
from hashlib import sha256
from hmac import compare_digest
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection, Row, bindparam, func, insert, or_, select, update

from device_sdk.wire.messages import Enrol
from server.problems import Refusal
from server.storage.schema import devices, enrolment_tokens
from server.tokens import digest, draw_token

log = logging.getLogger("idiolect.server")


def device_id_of(public_key: bytes) -> str:
    """How the server calls the device that enrols with this key: a digest of it."""
    return sha256(public_key).hexdigest()[:32]


def enrol(
    connection: Connection, public_key: bytes, now: float, token: str | None = None, uses: int | None = None
) -> str:
    """Register a key. Returns the device id (:func:`device_id_of`): enrolling again after a lost answer changes
    nothing, and uses up nothing of the token. token: the one that was shown, None for the server's own. uses: how many
    devices that one lets in. Raises Refusal: 401 ``bad_token``; 403 ``device_revoked`` for a key that was revoked,
    ``token_revoked``, ``token_expired``, ``token_used_up``."""
    shown = None if token is None else find_enrolment_token(connection, token)
    device_id = device_id_of(public_key)
    row = find_device(connection, device_id)
    if row is None:
        if shown is not None:
            _use(connection, shown, now)
        elif uses is not None:
            # Devices that came with the server's own token, those that were revoked too.
            own = select(func.count()).select_from(devices).where(devices.c.enrolment_token.is_(None))
            if connection.execute(own).scalar_one() >= uses:
                raise _used_up(uses)
        name = None if shown is None else shown.name
        values = {"id": device_id, "public_key": public_key, "enrolled_at": now, "enrolment_token": name}
        connection.execute(insert(devices).values(values))
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
        detail = "public_key: expected the base64 of a raw Ed25519 key of 32 bytes"
        raise Refusal(422, "bad_key", detail, "public_key") from error
    return raw


def find_device(connection: Connection, device_id: str) -> Row[Any] | None:
    return connection.execute(_FIND, {"device_id": device_id}).first()


_FIND = select(devices).where(devices.c.id == bindparam("device_id"))


def list_devices(connection: Connection, after: str, limit: int) -> list[Row[Any]]:
    """By id, from the one after ``after``."""
    return list(connection.execute(select(devices).where(devices.c.id > after).order_by(devices.c.id).limit(limit)))


def revoke(connection: Connection, device_id: str, now: float) -> None:
    """Refuse everything the device sends from now on. Raises Refusal (404)."""
    valid = update(devices).where(devices.c.id == device_id, devices.c.revoked_at.is_(None))
    if connection.execute(valid.values(revoked_at=now)).rowcount == 0 and find_device(connection, device_id) is None:
        raise Refusal(404, "unknown_device", f"device {device_id[:64]!r} is not enrolled", "device_id")


def count_devices(connection: Connection) -> int:
    return int(connection.execute(select(func.count()).select_from(devices)).scalar_one())


def same_secret(found: str, expected: str) -> bool:
    """Compare two secrets in constant time, whatever characters the first holds."""
    return compare_digest(found.encode("utf-8", "replace"), expected.encode())


def add_enrolment_token(
    connection: Connection, name: str, by: str, now: float, *, uses: int | None, expires_at: float | None
) -> str:
    """A new token. Returns it; it is shown once and kept as its SHA-256. Raises Refusal: 409 ``name_taken``. uses: how
    many devices it lets in, None for any number. expires_at: seconds since the epoch, None for no end."""
    if connection.execute(select(enrolment_tokens).where(enrolment_tokens.c.name == name)).first() is not None:
        raise Refusal(409, "name_taken", f"name: {name!r} is or was an enrolment token; choose another", "name")
    token = draw_token()
    row = {"name": name, "token_sha256": digest(token), "created_at": now, "created_by": by}
    connection.execute(insert(enrolment_tokens).values(**row, uses=uses, used=0, expires_at=expires_at))
    return token


def list_enrolment_tokens(connection: Connection) -> list[Row[Any]]:
    """The newest first, those that let nobody in any more too."""
    table = enrolment_tokens.c
    return list(connection.execute(select(enrolment_tokens).order_by(table.created_at.desc(), table.name)))


def revoke_enrolment_token(connection: Connection, name: str, now: float) -> None:
    """Let nobody in with it any more; devices that it let in stay. Raises Refusal: 404 ``unknown_enrolment_token``."""
    table = enrolment_tokens.c
    valid = update(enrolment_tokens).where(table.name == name, table.revoked_at.is_(None))
    changed = connection.execute(valid.values(revoked_at=now)).rowcount
    if changed == 0 and not connection.execute(select(table.name).where(table.name == name)).first():
        raise Refusal(404, "unknown_enrolment_token", f"enrolment token {name[:64]!r} does not exist", "name")


def find_enrolment_token(connection: Connection, token: str) -> Row[Any]:
    """Raises Refusal: 401 ``bad_token``."""
    row = connection.execute(select(enrolment_tokens).where(enrolment_tokens.c.token_sha256 == digest(token))).first()
    if row is None:
        raise Refusal(401, "bad_token", "token: not this server's enrolment token", "token")
    return row


def _use(connection: Connection, row: Row[Any], now: float) -> None:
    """Let one more device in. ``row`` must come from this transaction. Raises Refusal: 403 ``token_revoked``,
    ``token_expired``, ``token_used_up``."""
    if row.revoked_at is not None:
        raise Refusal(403, "token_revoked", "token: this enrolment token was revoked; ask for a new one", "token")
    if row.expires_at is not None and row.expires_at <= now:
        raise Refusal(403, "token_expired", "token: this enrolment token has expired; ask for a new one", "token")
    if row.uses is not None and row.used >= row.uses:
        raise _used_up(row.uses)
    own = update(enrolment_tokens).where(enrolment_tokens.c.name == row.name)
    connection.execute(own.values(used=enrolment_tokens.c.used + 1))


def _used_up(uses: int) -> Refusal:
    """The refusal by a token that let in so many devices."""
    detail = f"token: this enrolment token let in the {uses} devices it was for; ask for a new one"
    return Refusal(403, "token_used_up", detail, "token")


def eligible_at(opened_at: Any, until: Any = None) -> tuple[Any, ...]:
    """Conditions on :data:`devices` for who was eligible when a round opened. until: of a charge of those who enrolled
    later, too."""
    return (
        devices.c.enrolled_at <= (opened_at if until is None else func.coalesce(until, opened_at)),
        or_(devices.c.revoked_at.is_(None), devices.c.revoked_at >= opened_at),
    )
