"""What operators did: one line an action, written in the transaction that does it, and never changed."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection, Row, insert, select

from server.storage.schema import actions

__all__ = ["Action", "list_actions", "record"]

Action = Literal[
    "rollout.begin",
    "rollout.promote",
    "rollout.roll-back",
    "device.revoke",
    "enrolment.add",
    "enrolment.revoke",
    "marginals.publish",
    "marginals.push",
    "model.publish",
    "model.push",
    "operator.add",
    "operator.revoke",
    "round.abandon",
    "round.close",
    "round.create",
    "round.open",
    "sign-in",
]


def record(connection: Connection, operator: str, action: Action, subject: str, now: float, note: str = "") -> None:
    """Write down that an operator did something. subject: the round, version, device or name that it was done to."""
    connection.execute(
        insert(actions).values(at=now, operator=operator, action=action, subject=subject[:128], note=note[:500])
    )


def list_actions(connection: Connection, limit: int) -> list[Row[Any]]:
    """The newest first."""
    return list(connection.execute(select(actions).order_by(actions.c.id.desc()).limit(limit)))
