"""Which devices a round may ask: those enrolled, and not revoked, when it opens."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, or_

from server.storage.schema import devices

__all__ = ["eligible_at"]


def eligible_at(opened_at: Any, until: Any = None) -> tuple[Any, ...]:
    """Conditions on :data:`devices` for who was eligible when a round opened. until: of a charge of those who enrolled
    later, too."""
    return (
        devices.c.enrolled_at <= (opened_at if until is None else func.coalesce(until, opened_at)),
        or_(devices.c.revoked_at.is_(None), devices.c.revoked_at >= opened_at),
    )
