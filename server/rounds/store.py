"""Rounds in the database: created, found, moved between states. Every function runs in the caller's transaction."""

from __future__ import annotations

import logging
import math
from secrets import token_hex
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from server.plans.round import STREAMS, RoundSettings, RoundState, check
from server.privacy.charges import charge_for
from server.privacy.ledger import check_population
from server.privacy.population import charge_population
from server.problems import Refusal
from server.registry.models import current_version
from server.rounds.release_keys import Caps
from server.rounds.sampling import new_sample
from server.storage.schema import aggregation_groups as groups
from server.storage.schema import aggregation_messages as messages
from server.storage.schema import models, releases, rounds, transitions

__all__ = [
    "count_by_state",
    "create_round",
    "find_round",
    "follow_up",
    "list_rounds",
    "open_round",
    "read_settings",
    "rounds_in",
    "transition",
    "unfinished",
    "view",
]

log = logging.getLogger("idiolect.server")


def create_round(connection: Connection, settings: RoundSettings, now: float) -> str:
    """A planned round. Returns its id: unique over all servers, since devices remember the rounds they answered."""
    number = int(connection.execute(select(func.coalesce(func.max(rounds.c.number), 0))).scalar_one()) + 1
    round_id = f"r{number}-{token_hex(5)}"
    connection.execute(
        insert(rounds).values(
            id=round_id,
            number=number,
            state=RoundState.PLANNED,
            settings=settings.model_dump(mode="json"),
            created_at=now,
            marginals_reports=0,
            deltas_reports=0,
            words_reports=0,
            note="",
        )
    )
    return round_id


def open_round(connection: Connection, round_id: str, now: float, caps: Caps | None = None) -> None:
    """Open a planned round on what is current: who is asked is drawn, and where accounting is amplified, all who may be
    are charged, within the caps. Raises Refusal (409): ``round_open`` while another round is, ``privacy_cap``,
    ``no_devices``."""
    other = connection.execute(select(rounds.c.id).where(rounds.c.state == RoundState.OPEN)).scalar()
    if other is not None:
        raise Refusal(409, "round_open", f"round {other} is open; close or abandon it first", "state")
    row = find_round(connection, round_id)
    check(RoundState(row.state), RoundState.OPEN)
    sampled = _sample(connection, row, now, caps)
    transition(connection, row, RoundState.OPEN, now)
    connection.execute(
        update(rounds)
        .where(rounds.c.id == round_id)
        .values(
            base_model=current_version(connection, "model"),
            base_marginals=int(current_version(connection, "marginals")),
            opened_at=now,
            deadline=now + read_settings(row).seconds,
            **sampled,
        )
    )


def _sample(connection: Connection, row: Row[Any], now: float, caps: Caps | None) -> dict[str, Any]:
    settings = read_settings(row)
    if settings.sampling is None:
        return {}
    sample = new_sample(connection, settings.sampling, settings.goal, now)
    if not sample.eligible:
        raise Refusal(
            409, "no_devices", "no device is enrolled that could be asked; sample once there are some", "sampling"
        )
    if settings.amplified:
        if caps is None:
            raise Refusal(409, "privacy_cap", "an amplified round opens only where the caps of its server are known")
        charges = {stream: charge_for(stream, settings) for stream in settings.streams}
        for stream, charge in charges.items():
            check_population(connection, stream, charge, caps.streams.get(stream, math.inf), caps.delta, now)
        for stream, charge in charges.items():
            charge_population(
                connection,
                round_id=row.id,
                stream=stream,
                charge=charge,
                eligible=sample.eligible,
                eligible_at=now,
                now=now,
            )
    return {"sampling_key": sample.key, "sampling_threshold": sample.threshold, "eligible": sample.eligible}


def follow_up(connection: Connection, row: Row[Any], now: float, caps: Caps | None = None) -> str | None:
    """Open the next of the rounds like one that has ended, where more are to come and no other round is open. Returns
    its id; a round that must not open stays planned, and its note says why."""
    settings = read_settings(row)
    if settings.rounds == 1 or connection.execute(select(rounds.c.id).where(rounds.c.state == RoundState.OPEN)).first():
        return None
    round_id = create_round(connection, settings.model_copy(update={"rounds": settings.rounds - 1}), now)
    try:
        open_round(connection, round_id, now, caps)
    except Refusal as error:  # it was refused before anything of it was written
        connection.execute(update(rounds).where(rounds.c.id == round_id).values(note=error.detail))
    return round_id


def transition(connection: Connection, row: Row[Any], target: RoundState, now: float, note: str = "") -> None:
    """Move a round, and write down that it moved. ``row`` must come from this transaction."""
    check(RoundState(row.state), target)
    connection.execute(update(rounds).where(rounds.c.id == row.id).values(state=target, note=note or row.note))
    connection.execute(insert(transitions).values(round_id=row.id, source=row.state, target=target, at=now, note=note))
    log.debug("round %s: %s to %s", row.id, row.state, target.value)


def find_round(connection: Connection, round_id: str) -> Row[Any]:
    """Raises Refusal (404)."""
    row = connection.execute(_FIND, {"round_id": round_id}).first()
    if row is None:
        raise Refusal(404, "unknown_round", f"round {round_id[:64]!r} does not exist", "round_id")
    return row


_FIND = select(rounds).where(rounds.c.id == bindparam("round_id"))


def list_rounds(connection: Connection, limit: int = 100) -> list[Row[Any]]:
    """The newest first."""
    return list(connection.execute(select(rounds).order_by(rounds.c.number.desc()).limit(limit)))


def rounds_in(connection: Connection, *states: RoundState) -> list[Row[Any]]:
    """Rounds in any of the states, the oldest first."""
    return list(connection.execute(_IN, {"states": states}))


_IN = select(rounds).where(rounds.c.state.in_(bindparam("states", expanding=True))).order_by(rounds.c.number)


def unfinished(connection: Connection) -> list[Row[Any]]:
    """Id, state and deadline of the rounds that move, the oldest first; nothing else of them is read, which may be what
    is damaged."""
    return list(connection.execute(_UNFINISHED))


_UNFINISHED = (
    select(rounds.c.id, rounds.c.state, rounds.c.deadline)
    .where(rounds.c.state.in_((RoundState.OPEN, RoundState.CLOSING, RoundState.AGGREGATED, RoundState.EVALUATED)))
    .order_by(rounds.c.number)
)


def count_by_state(connection: Connection) -> dict[str, int]:
    query = select(rounds.c.state, func.count().label("rounds")).group_by(rounds.c.state)
    return {row.state: row.rounds for row in connection.execute(query)}


def read_settings(row: Row[Any]) -> RoundSettings:
    return RoundSettings.model_validate(row.settings)


def view(connection: Connection, row: Row[Any]) -> dict[str, Any]:
    """A round as operators see it."""
    moves = connection.execute(select(transitions).where(transitions.c.round_id == row.id).order_by(transitions.c.id))
    drawn = connection.execute(select(releases).where(releases.c.round_id == row.id).order_by(releases.c.stream))
    return {
        "id": row.id,
        "number": row.number,
        "state": row.state,
        "settings": row.settings,
        "base_model": row.base_model,
        "base_marginals": row.base_marginals,
        "opened_at": row.opened_at,
        "deadline": row.deadline,
        "eligible": row.eligible,
        "reports": {stream: getattr(row, f"{stream}_reports") for stream in STREAMS},
        "model_version": row.model_version,
        "teacher_version": None
        if row.model_version is None
        else connection.execute(select(models.c.teacher).where(models.c.version == row.model_version)).scalar(),
        "marginals_version": row.marginals_version,
        "groups": _groups(connection, row.id),
        "evaluation": row.evaluation,
        "note": row.note,
        "transitions": [
            {"source": move.source, "target": move.target, "at": move.at, "note": move.note} for move in moves
        ],
        "releases": {
            release.stream: {
                "reports": release.reports,
                "inputs_sha256": release.inputs_sha256,
                "mechanism": release.mechanism,
                "words": release.words,
                "drawn_at": release.drawn_at,
            }
            for release in drawn
        },
    }


def _groups(connection: Connection, round_id: str) -> list[dict[str, Any]]:
    """A round's groups as operators see them, in the order in which they formed."""
    devices = func.count(messages.c.device_id).label("devices")
    query = select(groups.c.stage, groups.c.deadline, groups.c.note, devices)
    query = query.join(messages, (messages.c.group_id == groups.c.id) & (messages.c.stage == "keys"))
    rows = connection.execute(query.where(groups.c.round_id == round_id).group_by(groups.c.id).order_by(groups.c.id))
    return [row._asdict() for row in rows]
