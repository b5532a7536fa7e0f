"""Buffered asynchronous rounds: which of a series takes a report, and how old the model is that a delta was made on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select

from server.plans.round import RoundSettings
from server.plans.states import RoundState
from server.problems import Refusal
from server.rounds.store import read_settings, rounds_in
from server.storage.schema import models, rollouts, rounds

__all__ = ["check_staleness", "staleness_of", "taking_round"]

_PAUSE = 2
"""Seconds until a report between two rounds should be tried again."""
_UNDERWAY = (RoundState.CLOSING, RoundState.AGGREGATED, RoundState.EVALUATED)


def taking_round(connection: Connection, row: Row[Any], now: float) -> Row[Any]:
    """The round that takes a report which was made for ``row``: the open one of its series where buffered rounds follow
    each other, else ``row`` itself.

    Raises Refusal (503 ``between_rounds``) while the series has no open round, but will have: the report is not lost,
    its device sends it again.
    """
    settings = read_settings(row)
    if settings.buffered is None or row.state == RoundState.PLANNED:
        return row
    series = [
        (other, found)
        for other in (*rounds_in(connection, RoundState.OPEN, *_UNDERWAY), *_tried(connection))
        if other.number >= row.number and _alike(found := read_settings(other), settings)
    ]
    for other, _ in series:
        if other.state == RoundState.OPEN and other.deadline > now:
            return other
    if any(found.rounds > 1 for _, found in series):
        detail = f"round {row.id} is full and the next is not open yet; send the report again"
        raise Refusal(503, "between_rounds", detail, "round_id", retry_after=_PAUSE)
    return row


def staleness_of(connection: Connection, base: str, version: str, limit: int) -> int | None:
    """How many models were made between ``version`` and ``base``, which descends from it; None where it does not, or
    where they are more than ``limit``."""
    current: str | None = base
    for staleness in range(limit + 1):
        if current == version:
            return staleness
        current = connection.execute(select(models.c.parent).where(models.c.version == current)).scalar()
        if current is None:
            return None
    return None


def check_staleness(connection: Connection, row: Row[Any], settings: RoundSettings, version: str) -> int:
    """Models between a delta's and the round's. Raises Refusal (409 ``stale_model``) beyond what the round takes."""
    limit = 0 if settings.buffered is None else settings.buffered.staleness_limit
    found = staleness_of(connection, row.base_model, version, limit)
    if found is None:
        detail = f"model_version: delta is on {version}, the round is on {row.base_model}"
        if limit:
            detail += f" and takes models at most {limit} before it"
        raise Refusal(409, "stale_model", detail, "model_version")
    return found


def _tried(connection: Connection) -> list[Row[Any]]:
    """Rounds whose model goes to some devices first: the next one waits for what comes of it."""
    made = select(models.c.round_id).join(rollouts, rollouts.c.version == models.c.version)
    running = made.where(rollouts.c.state == "running")
    return list(connection.execute(select(rounds).where(rounds.c.id.in_(running))))


def _alike(one: RoundSettings, other: RoundSettings) -> bool:
    return one.model_copy(update={"rounds": 1}) == other.model_copy(update={"rounds": 1})
