"""Rounds, and what they may tell about somebody, as operators see them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import WithJsonSchema

from server.operators.messages.answer import Answer
from server.plans.states import RoundState

__all__ = [
    "DevicePrivacy",
    "Epsilon",
    "Group",
    "Move",
    "Privacy",
    "Release",
    "Round",
    "Rounds",
    "Status",
    "StreamPrivacy",
]

Level = Annotated[float, WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["Infinity"]}]})]


class Group(Answer):
    """Devices of a round that add up their counts together."""

    stage: str
    deadline: float
    note: str
    devices: int


class Move(Answer):
    """A step of a round from one state to another. at: seconds since the epoch."""

    source: RoundState
    target: RoundState
    at: float
    note: str


class Release(Answer):
    """What a round let out of a stream. words: new ones, with the noised number of devices that named each."""

    reports: int
    inputs_sha256: str
    mechanism: dict[str, Any]
    words: dict[str, int] | None = None
    drawn_at: float


class Round(Answer):
    """A round: its settings, how it moved, what it released. Times in seconds since the epoch."""

    id: str
    number: int
    state: RoundState
    settings: dict[str, Any]
    base_model: str | None
    base_marginals: int | None
    opened_at: float | None
    deadline: float | None
    reports: dict[str, int]
    model_version: str | None
    teacher_version: str | None
    marginals_version: int | None
    groups: list[Group]
    evaluation: dict[str, Any] | None
    note: str
    transitions: list[Move]
    releases: dict[str, Release]


class Rounds(Answer):
    """The newest first."""

    rounds: list[Round]


class Status(Answer):
    """What is current, and which rounds are under way."""

    model_version: str
    teacher_version: str | None
    marginals_version: int
    devices: int
    since: float | None
    rounds: list[Round]


class Epsilon(Answer):
    """What somebody's part in a stream may tell, in nats; infinite without noise. delta: at which that holds."""

    epsilon: Level
    delta: Level
    utterance_epsilon: Level
    utterance_delta: Level
    count_epsilon: Level | None
    rounds: int


class StreamPrivacy(Epsilon):
    """Of the device that spent most, with what the numbers mean."""

    adjacency: str
    utterance_adjacency: str
    sampling: str
    trust_model: str
    devices: int


class DevicePrivacy(Epsilon):
    """Of one device."""

    device_id: str
    stream: str


class Privacy(Answer):
    """The ledger: by stream, and a line for every device and stream. caps: by stream."""

    streams: dict[str, StreamPrivacy]
    devices: list[DevicePrivacy]
    caps: dict[str, Level]
