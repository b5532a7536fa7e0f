"""Where a group of devices stands, and when it goes on: a state machine without messages, clocks or storage.

A stage is over when everybody expected has answered, or when its time is up. Then those who answered go on, if they are
at least the roster's threshold; with fewer the group is abandoned, and nothing of it was revealed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from device_sdk.errors import ProtocolError
from device_sdk.wire.secure_aggregation import STAGES, Roster, Stage


@dataclass(frozen=True, slots=True)
class Group:
    """roster: who adds up their counts. stage: what the server waits for, None when it has all it needs. answers: the
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
