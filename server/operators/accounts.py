"""Named operators in the database. A token is kept as its SHA-256 alone: it is drawn with 256 bits, so that nobody can
try them all, and a slow hash would only slow the server. Names are never given twice, so that the trail stays clear."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, Row, insert, select, update

from server.problems import Refusal
from server.storage.schema import actions, operators
from server.tokens import digest, draw_token


def add_operator(connection: Connection, name: str, role: Role, by: str, now: float) -> str:
    """A new operator. Returns the token, which is shown once and never kept. Raises Refusal: 409 ``name_taken``."""
    if name == BOOTSTRAP or find_operator(connection, name) is not None:
        raise Refusal(409, "name_taken", f"name: {name!r} is or was an operator; choose another", "name")
    token = draw_token()
    connection.execute(
        insert(operators).values(name=name, role=role, token_sha256=digest(token), created_at=now, created_by=by)
    )
    return token


def revoke_operator(connection: Connection, name: str, now: float) -> None:
    """Refuse a token, and the web pages opened with it, from now on. Raises Refusal: 404 ``unknown_operator``."""
    changed = connection.execute(
        update(operators).where(operators.c.name == name, operators.c.revoked_at.is_(None)).values(revoked_at=now)
    )
    if changed.rowcount == 0 and find_operator(connection, name) is None:
        detail = f"operator {name[:64]!r} does not exist"
        if name == BOOTSTRAP:
            detail = "the bootstrap administrator is whoever shows the server's own operator token; change that"
        raise Refusal(404, "unknown_operator", detail, "name")


def find_operator(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(operators).where(operators.c.name == name)).first()


def list_operators(connection: Connection) -> list[Row[Any]]:
    """By name, those who were revoked too."""
    return list(connection.execute(select(operators).order_by(operators.c.name)))


def who_shows(connection: Connection, token: str) -> Operator:
    """The operator whose token this is. Raises Refusal: 401 ``bad_token``, ``token_revoked``."""
    row = connection.execute(select(operators).where(operators.c.token_sha256 == digest(token))).first()
    if row is None:
        detail = "expected an operator token of this server as Authorization: Bearer"
        raise Refusal(401, "bad_token", detail, "Authorization")
    if row.revoked_at is not None:
        raise Refusal(401, "token_revoked", f"the token of operator {row.name} was revoked", "Authorization")
    return Operator(row.name, Role(row.role))


Action: TypeAlias = (
    Literal["rollout.begin", "rollout.promote", "rollout.roll-back", "device.revoke", "enrolment.add"]
    | Literal["enrolment.revoke", "marginals.publish", "marginals.push", "model.publish", "model.push"]
    | Literal["operator.add", "operator.revoke", "sign-in"]
    | Literal["round.abandon", "round.close", "round.create", "round.open"]
)


def record(connection: Connection, operator: str, action: Action, subject: str, now: float, note: str = "") -> None:
    """Write down that an operator did something. subject: the round, version, device or name that it was done to."""
    connection.execute(
        insert(actions).values(at=now, operator=operator, action=action, subject=subject[:128], note=note[:500])
    )


def list_actions(connection: Connection, limit: int) -> list[Row[Any]]:
    """The newest first."""
    return list(connection.execute(select(actions).order_by(actions.c.id.desc()).limit(limit)))


BOOTSTRAP = "bootstrap"
"""Name of whoever shows the server's own operator token: the administrator who adds the first operators."""


class Role(StrEnum):
    """``viewer`` reads; ``operator`` also runs rounds, publishes, and revokes devices; ``administrator`` also says who
    may do what, and who may enrol."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMINISTRATOR = "administrator"

    def includes(self, other: Role) -> bool:
        """Whether whoever has this role may do what the other one may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Operator:
    """Somebody who showed a token that is good."""

    name: str
    role: Role
