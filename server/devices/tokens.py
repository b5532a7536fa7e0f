"""Tokens that let devices enrol: each has a name, and may have an end, a number of uses, or both."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from server.problems import Refusal
from server.storage.schema import enrolment_tokens
from server.tokens import digest, draw_token

__all__ = [
    "add_enrolment_token",
    "find_enrolment_token",
    "list_enrolment_tokens",
    "revoke_enrolment_token",
    "use",
    "used_up",
]


def add_enrolment_token(
    connection: Connection, name: str, by: str, now: float, *, uses: int | None, expires_at: float | None
) -> str:
    """A new token. Returns it; it is shown once and kept as its SHA-256. Raises Refusal: 409 ``name_taken``.

    uses: how many devices it lets in, None for any number. expires_at: seconds since the epoch, None for no end.
    """
    if connection.execute(select(enrolment_tokens).where(enrolment_tokens.c.name == name)).first() is not None:
        raise Refusal(409, "name_taken", f"name: {name!r} is or was an enrolment token; choose another", "name")
    token = draw_token()
    connection.execute(
        insert(enrolment_tokens).values(
            name=name,
            token_sha256=digest(token),
            created_at=now,
            created_by=by,
            uses=uses,
            used=0,
            expires_at=expires_at,
        )
    )
    return token


def list_enrolment_tokens(connection: Connection) -> list[Row[Any]]:
    """The newest first, those that let nobody in any more too."""
    table = enrolment_tokens.c
    return list(connection.execute(select(enrolment_tokens).order_by(table.created_at.desc(), table.name)))


def revoke_enrolment_token(connection: Connection, name: str, now: float) -> None:
    """Let nobody in with it any more; devices that it let in stay. Raises Refusal: 404 ``unknown_enrolment_token``."""
    table = enrolment_tokens.c
    changed = connection.execute(
        update(enrolment_tokens).where(table.name == name, table.revoked_at.is_(None)).values(revoked_at=now)
    )
    if changed.rowcount == 0 and not connection.execute(select(table.name).where(table.name == name)).first():
        raise Refusal(404, "unknown_enrolment_token", f"enrolment token {name[:64]!r} does not exist", "name")


def find_enrolment_token(connection: Connection, token: str) -> Row[Any]:
    """Raises Refusal: 401 ``bad_token``."""
    row = connection.execute(select(enrolment_tokens).where(enrolment_tokens.c.token_sha256 == digest(token))).first()
    if row is None:
        raise Refusal(401, "bad_token", "token: not this server's enrolment token", "token")
    return row


def use(connection: Connection, row: Row[Any], now: float) -> None:
    """Let one more device in. ``row`` must come from this transaction.

    Raises Refusal: 403 ``token_revoked``, ``token_expired``, ``token_used_up``.
    """
    if row.revoked_at is not None:
        raise Refusal(403, "token_revoked", "token: this enrolment token was revoked; ask for a new one", "token")
    if row.expires_at is not None and row.expires_at <= now:
        raise Refusal(403, "token_expired", "token: this enrolment token has expired; ask for a new one", "token")
    if row.uses is not None and row.used >= row.uses:
        raise used_up(row.uses)
    connection.execute(
        update(enrolment_tokens).where(enrolment_tokens.c.name == row.name).values(used=enrolment_tokens.c.used + 1)
    )


def used_up(uses: int) -> Refusal:
    """The refusal by a token that let in so many devices."""
    detail = f"token: this enrolment token let in the {uses} devices it was for; ask for a new one"
    return Refusal(403, "token_used_up", detail, "token")
