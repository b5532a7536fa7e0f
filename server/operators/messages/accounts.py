"""Who may operate and report, what was done, and how the server is, as operators see them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from server.operators.messages.answer import Answer
from server.operators.roles import Role

__all__ = [
    "ActionEntry",
    "Actions",
    "DeviceEntry",
    "DeviceRevoked",
    "Devices",
    "EnrolmentTokenEntry",
    "EnrolmentTokenMade",
    "EnrolmentTokens",
    "Health",
    "Me",
    "OperatorEntry",
    "OperatorMade",
    "Operators",
    "Readiness",
]


class Health(Answer):
    """The process runs."""

    status: Literal["ok"]


class Readiness(Answer):
    """Whether requests can be served. checks: by what was looked at, whether it is in order. tick_ages: seconds since
    the last good tick of the ``loop`` that moves rounds, and of every unfinished round by its id."""

    status: Literal["ready", "unready"]
    checks: dict[str, bool]
    model_version: str | None = None
    tick_ages: dict[str, float] = Field(default_factory=dict)


class Me(Answer):
    """Whose token this is."""

    name: str
    role: Role


class DeviceEntry(Answer):
    """An enrolled device. enrolment_token: name of the token that let it in, None for the server's own."""

    device_id: str
    enrolled_at: float
    revoked_at: float | None
    enrolment_token: str | None


class Devices(Answer):
    """By id, from the one after ``after``. count: of all that are enrolled."""

    count: int
    devices: list[DeviceEntry]


class DeviceRevoked(Answer):
    device_id: str
    revoked: Literal[True]


class OperatorEntry(Answer):
    name: str
    role: Role
    created_at: float
    created_by: str
    revoked_at: float | None


class OperatorMade(OperatorEntry):
    """token: shown this once."""

    token: str


class Operators(Answer):
    """By name."""

    operators: list[OperatorEntry]


class EnrolmentTokenEntry(Answer):
    """uses: how many devices it may let in; used: how many it has."""

    name: str
    created_at: float
    created_by: str
    uses: int | None
    used: int
    expires_at: float | None
    revoked_at: float | None


class EnrolmentTokenMade(EnrolmentTokenEntry):
    """token: shown this once."""

    token: str


class EnrolmentTokens(Answer):
    """The newest first."""

    enrolment_tokens: list[EnrolmentTokenEntry]


class ActionEntry(Answer):
    """subject: the round, version, device or name that it was done to."""

    at: float
    operator: str
    action: str
    subject: str
    note: str


class Actions(Answer):
    """The newest first."""

    actions: list[ActionEntry]
