"""Where a group of devices stands, when it goes on, and how groups and their messages are stored, by the caller's
transaction.

A stage is over when everybody expected has answered, or when its time is up. Then those who answered go on, if they are
at least the roster's threshold; with fewer the group is abandoned, and nothing of it was revealed."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, func, insert, select, update

from device_sdk.errors import ProtocolError
from device_sdk.wire.secure_aggregation import STAGES, KeyAdvertisement, Roster, Stage, StageMessage
from server.rounds.due import ENDED
from server.storage.database import forget, overwrite
from server.storage.schema import aggregation_groups as groups
from server.storage.schema import aggregation_messages as messages

_Message = TypeVar("_Message", bound=StageMessage)


@dataclass(frozen=True, slots=True)
class Group:
    """roster: who adds up their vectors. stage: what the server waits for, None when it has all it needs. answers: the
    devices that answered, by stage."""

    roster: Roster
    stage: Stage | None
    answers: Mapping[Stage, frozenset[str]]

    def answered(self, stage: Stage) -> frozenset[str]:
        return self.answers.get(stage, frozenset())

    @property
    def expected(self) -> frozenset[str]:
        """Who may answer at the present stage: those who answered at the one before."""
        if self.stage is None:
            return frozenset()
        return self.answered(STAGES[STAGES.index(self.stage) - 1])

    @property
    def dealers(self) -> frozenset[str]:
        """Whose shares are with the others."""
        return self.answered("shares")

    @property
    def survivors(self) -> tuple[str, ...]:
        """Whose masked inputs make the sum, sorted."""
        return tuple(sorted(self.answered("masked")))


def answered_by(group: Group, device_id: str) -> Group:
    """The group after an answer at its present stage. ProtocolError: this device is not expected to answer."""
    stage = group.stage
    if stage is None or device_id not in group.expected:
        raise ProtocolError(f"device_id: {device_id} is not expected to answer at stage {stage}; it came too late")
    return replace(group, answers={**group.answers, stage: group.answered(stage) | {device_id}})


def is_finished(group: Group) -> bool:
    """Whether everybody expected has answered, so that the stage needs no more time."""
    return group.stage is None or group.answered(group.stage) == group.expected


def next_stage(group: Group) -> Group:
    """The group at its next stage, with those who answered. ProtocolError: they are too few; abandon the group."""
    if group.stage is None:
        return group
    found, expected = len(group.answered(group.stage)), group.roster.threshold
    if found < expected:
        raise ProtocolError(
            f"{group.stage}: found answers of {found} of {len(group.roster.members)} devices, expected at least "
            f"{expected}"
        )
    following = STAGES.index(group.stage) + 1
    return replace(group, stage=STAGES[following] if following < len(STAGES) else None)


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it is stored. ended: ``done`` or ``abandoned``, None while it goes on. deadline: of its stage."""

    id: int
    round_id: str
    group: Group
    deadline: float
    ended: str | None


def keep(connection: Connection, message: StageMessage, group_id: int | None, now: float) -> None:
    """Store one message as it came."""
    own = {"round_id": message.round_id, "device_id": message.device_id, "stage": message.stage, "group_id": group_id}
    body = message.body
    content = {"body": body, "body_sha256": sha256(body).hexdigest(), "size": len(body)}
    connection.execute(insert(messages).values(**own, **content, received_at=now))


def find_message(connection: Connection, round_id: str, device_id: str, stage: Stage) -> Row[Any] | None:
    own = (messages.c.round_id == round_id, messages.c.device_id == device_id, messages.c.stage == stage)
    return connection.execute(select(messages).where(*own)).first()


def decline(connection: Connection, round_id: str) -> None:
    """Tell those who wait for a group that there is none for them."""
    connection.execute(update(messages).where(*_unplaced(round_id)).values(body=None))


def waiting(connection: Connection, round_id: str) -> list[KeyAdvertisement]:
    """Keys of devices that are in no group yet, the oldest first."""
    query = select(messages).where(*_unplaced(round_id), messages.c.body.is_not(None))
    rows = connection.execute(query.order_by(messages.c.received_at, messages.c.device_id))
    return [KeyAdvertisement.read(row.body, row.device_id, round_id) for row in rows]


def _unplaced(round_id: str) -> tuple[Any, ...]:
    return messages.c.round_id == round_id, messages.c.stage == "keys", messages.c.group_id.is_(None)


def add_group(connection: Connection, roster: Roster, deadline: float) -> None:
    """A new group of devices that were waiting."""
    row = {"round_id": roster.round_id, "stage": "shares", "roster": roster.model_dump_json(), "note": ""}
    group_id = connection.execute(insert(groups).values(**row, deadline=deadline).returning(groups.c.id)).scalar_one()
    own = (messages.c.round_id == roster.round_id, messages.c.device_id.in_(roster.device_ids))
    connection.execute(update(messages).where(*own).values(group_id=group_id))


def find_group(connection: Connection, group_id: int) -> StoredGroup:
    row = connection.execute(select(groups).where(groups.c.id == group_id)).one()
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for answer in connection.execute(select(messages.c.stage, messages.c.device_id).where(_in(group_id))):
        answers[answer.stage].add(answer.device_id)
    ended = row.stage if row.stage in ENDED else None
    group = Group(
        Roster.model_validate_json(row.roster),
        None if ended else row.stage,
        {stage: frozenset(answers[stage]) for stage in get_args(Stage) if stage in answers},
    )
    return StoredGroup(row.id, row.round_id, group, row.deadline, ended)


def open_groups(connection: Connection, round_id: str) -> list[int]:
    """Ids of a round's groups that go on."""
    query = select(groups.c.id).where(groups.c.round_id == round_id, groups.c.stage.not_in(ENDED))
    return list(connection.execute(query.order_by(groups.c.id)).scalars())


def is_open(connection: Connection, group_id: int) -> bool:
    """Whether a group goes on."""
    query = select(groups.c.id).where(groups.c.id == group_id, groups.c.stage.not_in(ENDED))
    return connection.execute(query).first() is not None


def count_members(connection: Connection, group_id: int) -> int:
    """How many devices a group has, without a look at its roster."""
    query = select(func.count()).select_from(messages).where(_in(group_id), messages.c.stage == "keys")
    return int(connection.execute(query).scalar_one())


def answers(connection: Connection, group_id: int, message: type[_Message]) -> dict[str, _Message]:
    """The messages of one stage, by device in the order of their ids; none once the group has ended."""
    query = select(messages).where(_in(group_id), messages.c.stage == message.stage, messages.c.body.is_not(None))
    rows = connection.execute(query.order_by(messages.c.device_id))
    return {row.device_id: message.read(row.body, row.device_id, row.round_id) for row in rows}


def set_stage(connection: Connection, group_id: int, stage: Stage, deadline: float) -> None:
    connection.execute(update(groups).where(groups.c.id == group_id).values(stage=stage, deadline=deadline))


def end(connection: Connection, group_id: int, *, total: NDArray[np.int64] | None = None, note: str = "") -> None:
    """End a group: done with its sum, or abandoned without. Its messages' contents are deleted; hashes stay."""
    stage = "abandoned" if total is None else "done"
    content = None if total is None else total.astype("<i8").tobytes()
    connection.execute(update(groups).where(groups.c.id == group_id).values(stage=stage, total=content, note=note))
    connection.execute(update(messages).where(_in(group_id)).values(body=None))
    forget(connection, "aggregation_messages")


def sum_groups(connection: Connection, round_id: str) -> NDArray[np.int64] | None:
    """The sum over the groups that are done: int64 [words]; None where none is."""
    query = select(groups.c.total).where(groups.c.round_id == round_id, groups.c.stage == "done")
    totals = [np.frombuffer(content, "<i8") for content in connection.execute(query).scalars()]
    return np.sum(totals, axis=0, dtype=np.int64) if totals else None


def clear(connection: Connection, round_id: str) -> None:
    """Delete the contents of all messages of a round, and the groups' sums: the release has them, or nobody shall."""
    overwrite(connection, "aggregation_messages", round_id, binaries=["body"])
    cleared = {"body": None, "size": 0, "received_at": 0.0}
    connection.execute(update(messages).where(messages.c.round_id == round_id).values(cleared))
    overwrite(connection, "aggregation_groups", round_id, binaries=["total"])
    connection.execute(update(groups).where(groups.c.round_id == round_id).values(total=None))
    if connection.execute(select(groups.c.id).where(groups.c.round_id == round_id).limit(1)).first() is not None:
        forget(connection, "aggregation_messages", "aggregation_groups")


def _in(group_id: int) -> Any:
    return messages.c.group_id == group_id
