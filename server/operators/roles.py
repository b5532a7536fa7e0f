"""What an operator may do. Every role may do what the one before it may."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["BOOTSTRAP", "Operator", "Role"]

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
