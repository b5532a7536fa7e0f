"""Devices in a round of secure aggregation over HTTP, with counts that the test decides."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.secure_aggregation.participant import Participant, advertise, answer
from device_sdk.wire.secure_aggregation import AggregationTask, Stage, StageMessage
from tests.server.parties import DIGEST, WORDS, Party

ANSWERED: tuple[Stage, ...] = ("shares", "masked", "consistency", "unmasking")
PLAN: dict[str, Any] = {
    "trust": "distributed",
    "mechanism": "discrete_gaussian",
    "epsilon": 8.0,
    "delta": 1e-6,
    "max_weight": 300.0,
    "minimum_survivors": 2,
}


class Member:
    """A device that takes part. vector: what it adds, int64 [words]. sent: every body that it sent."""

    def __init__(self, party: Party, round_id: str, vector: Any, *, minimum: int = 2, digest: str = DIGEST) -> None:
        self.party, self.round_id, self.vector = party, round_id, vector
        own = {"subject": digest, "words": len(vector), "minimum": minimum}
        self.participant: Participant = advertise(party.key, party.id, round_id, **own)
        self.sent: list[bytes] = []

    def post(self, stage: str, message: StageMessage | bytes) -> Any:
        body = message if isinstance(message, bytes) else message.body
        self.sent.append(body)
        return self.party.post(f"/v1/rounds/{self.round_id}/aggregation{'/' * bool(stage)}{stage}", body, self.round_id)

    def join(self) -> Any:
        return self.post("keys", self.participant.advertised)

    def task(self) -> AggregationTask:
        answer = self.post("", b"")
        assert answer.status_code == 200, answer.text
        return AggregationTask.model_validate_json(answer.content)

    def step(self) -> str:
        """Does what the server asks for, if anything. Returns what it asked for."""
        task = self.task()
        message = self.answer(task)
        if message is not None:
            self.post(task.stage, message).raise_for_status()
        return task.stage

    def answer(self, task: AggregationTask) -> StageMessage | None:
        self.participant, message = answer(self.participant, self.party.key, task, lambda: self.vector)
        return message


def vectors(count: int, seed: int = 0) -> list[NDArray[np.int64]]:
    """Noised counts, with values that occur nowhere by chance: five digits and both signs."""
    rng = np.random.default_rng(seed)
    return list(rng.integers(10_000, 70_000, (count, WORDS)) * rng.choice([-1, 1], (count, WORDS)))


def through(members: list[Member], last: Stage, first: Stage = "shares") -> None:
    """All of them up to and with a stage."""
    for stage in ANSWERED[ANSWERED.index(first) : ANSWERED.index(last) + 1]:
        assert {member.step() for member in members} == {stage}
