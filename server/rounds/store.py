"""Rounds in the database: created, found, moved between states. Every function runs in the caller's transaction."""

import logging
from secrets import token_hex
from typing import Any

from sqlalchemy import Connection, Row, bindparam, func, insert, select, update

from server.plans.round import STREAMS, RoundSettings, RoundState, check
from server.privacy.ledger import Caps
from server.problems import Refusal
from server.registry.models import current_version
from server.rounds.sampling import new_sample
from server.storage.schema import aggregation_groups as groups
from server.storage.schema import aggregation_messages as messages
from server.storage.schema import models, releases, rounds, transitions

log = logging.getLogger("idiolect.server")


def create_round(connection: Connection, settings: RoundSettings, now: float, number: int | None = None) -> str:
    """A planned round, the next unless its number is given. Returns its id: unique over all servers, since devices
    remember the rounds they answered."""
    if number is None:
        number = int(connection.execute(select(func.coalesce(func.max(rounds.c.number), 0))).scalar_one()) + 1
    round_id = f"r{number}-{token_hex(5)}"
    row = {"id": round_id, "number": number, "state": RoundState.PLANNED, "created_at": now, "note": ""}
    counts = {f"{stream}_reports": 0 for stream in STREAMS}
    connection.execute(insert(rounds).values(**row, **counts, settings=settings.model_dump(mode="json")))
    return round_id


def open_round(connection: Connection, round_id: str, now: float, caps: Caps) -> None:
    """Open a planned round on what is current: who is asked is drawn, and where accounting is amplified, all who may be
    are charged, within the caps. Raises Refusal (409): ``round_open`` while another round is, ``privacy_cap``,
    ``no_devices``."""
    other = connection.execute(select(rounds.c.id).where(rounds.c.state == RoundState.OPEN)).scalar()
    if other is not None:
        raise Refusal(409, "round_open", f"round {other} is open; close or abandon it first", "state")
    row = find_round(connection, round_id)
    check(RoundState(row.state), RoundState.OPEN)
    settings = read_settings(row)
    values: dict[str, Any] = {"opened_at": now, "deadline": now + settings.seconds}
    if settings.sampling is not None:
        sample = new_sample(connection, settings.sampling, settings.goal, now)
        if not sample.eligible:
            detail = "no device is enrolled that could be asked; sample once there are some"
            raise Refusal(409, "no_devices", detail, "sampling")
        if settings.amplified:
            caps.charge_all(
                connection, round_id, settings.streams, settings, now, eligible=sample.eligible, eligible_at=now
            )
        values |= {"sampling_key": sample.key, "sampling_threshold": sample.threshold, "eligible": sample.eligible}
    transition(connection, row, RoundState.OPEN, now)
    values["base_model"] = current_version(connection, "model")
    values["base_marginals"] = int(current_version(connection, "marginals"))
    connection.execute(update(rounds).where(rounds.c.id == round_id).values(values))


def follow_up(connection: Connection, row: Row[Any], now: float, caps: Caps) -> None:
    """Open the next of the rounds like one that has ended, where more are to come and no other round is open. A round
    that must not open stays planned, and its note says why."""
    settings = read_settings(row)
    if settings.rounds == 1 or connection.execute(select(rounds.c.id).where(rounds.c.state == RoundState.OPEN)).first():
        return
    round_id = create_round(connection, settings.model_copy(update={"rounds": settings.rounds - 1}), now)
    try:
        open_round(connection, round_id, now, caps)
    except Refusal as error:  # it was refused before anything of it was written
        connection.execute(update(rounds).where(rounds.c.id == round_id).values(note=error.detail))


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
    moved = select(*(transitions.c[name] for name in ("source", "target", "at", "note")))
    moves = connection.execute(moved.where(transitions.c.round_id == row.id).order_by(transitions.c.id))
    drawn = connection.execute(select(releases).where(releases.c.round_id == row.id).order_by(releases.c.stream))
    return {
        **{name: getattr(row, name) for name in _TOLD},
        "reports": {stream: getattr(row, f"{stream}_reports") for stream in STREAMS},
        "teacher_version": None
        if row.model_version is None
        else connection.execute(select(models.c.teacher).where(models.c.version == row.model_version)).scalar(),
        "groups": _groups(connection, row.id),
        "transitions": [move._asdict() for move in moves],
        "releases": {release.stream: {name: getattr(release, name) for name in _RELEASED} for release in drawn},
    }


_TOLD = (
    *("id", "number", "state", "settings", "base_model", "base_marginals", "opened_at", "deadline", "eligible"),
    *("model_version", "marginals_version", "evaluation", "note"),
)
_RELEASED = ("reports", "inputs_sha256", "mechanism", "words", "drawn_at")


def _groups(connection: Connection, round_id: str) -> list[dict[str, Any]]:
    """A round's groups as operators see them, in the order in which they formed."""
    devices = func.count(messages.c.device_id).label("devices")
    query = select(groups.c.stage, groups.c.deadline, groups.c.note, devices)
    query = query.join(messages, (messages.c.group_id == groups.c.id) & (messages.c.stage == "keys"))
    rows = connection.execute(query.where(groups.c.round_id == round_id).group_by(groups.c.id).order_by(groups.c.id))
    return [row._asdict() for row in rows]
