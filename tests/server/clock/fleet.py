"""Devices as the protocol wants them, and what may happen to them: a table of operations with their weights.

A device reports every bucket that it owns once. It keeps a report's exact bytes until it is answered, and takes the
bucket back only where the server says that it will never take the report."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from device_sdk.wire.messages import FIXED_POINT
from server.plans.round import RoundSettings
from tests.server.clock.world import BUCKETS, Answer, Sending, World
from tests.server.parties import NO_NOISE, Party

DEVICES = 5
FINAL = {400, 403, 404, 409, 410, 413, 422}
DELTA = 1.0


@dataclass(frozen=True)
class Outgoing:
    """A report that waits for its receipt, under the key that signs it."""

    device: Party
    report_id: str
    round_id: str
    stream: str
    bucket: int
    body: bytes

    @property
    def path(self) -> str:
        return f"/v1/rounds/{self.round_id}/{self.stream}"


@dataclass
class Member:
    """One user's device. party: its key of today; owned: buckets of each stream that wait for a round."""

    party: Party
    owned: dict[str, list[int]] = field(default_factory=lambda: {"marginals": [], "deltas": []})
    outbox: list[Outgoing] = field(default_factory=list)
    retired: list[Party] = field(default_factory=list)


@dataclass
class Fleet:
    """What devices know, and what a judge writes down: owners (buckets made so far), acknowledged (reports), wire (all
    requests that were ever signed)."""

    world: World
    dice: random.Random
    members: list[Member] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=lambda: {"marginals": 0, "deltas": 0})
    acknowledged: list[Outgoing] = field(default_factory=list)
    wire: list[Sending] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.members = [Member(self._fresh()) for _ in range(DEVICES)]
        self.open_round()

    def _fresh(self) -> Party:
        return self.world.enrol(Party(None))

    def open_round(self, goal: int | None = 0) -> None:
        """A round of both streams, unless one is open. goal: 0 takes any."""
        if self.world.opened() is not None:
            return
        if goal == 0:
            goal = self.dice.choice([None, None, 2, 4])
        plan = {
            "marginals": {"epsilon": NO_NOISE},
            "deltas": {},
            "weighting": "uniform",
            "goal": goal,
            "no_privacy": True,
        }
        own = RoundSettings.model_validate(plan | {"seconds": self.dice.choice([200.0, 2000.0])})
        self.world.service.create_round(own, opened=True)

    def say(self) -> None:
        """A user speaks: a new bucket."""
        stream = self.dice.choice(["marginals", "deltas"])
        if self.made[stream] < BUCKETS:
            self.dice.choice(self.members).owned[stream].append(self.made[stream])
            self.made[stream] += 1

    def check_in(self) -> None:
        """And report what the offered round takes; the answer may be lost, and so may the reports."""
        member = self.dice.choice(self.members)
        for outgoing in list(member.outbox):
            self.deliver(member, outgoing)
        self._ask(member)

    def _ask(self, member: Member) -> None:
        answer = self._transmit(self.world.sign(member.party, "/v1/check-in", member.party.arrival()))
        if answer is None:
            return
        assert answer.status == 200, answer
        offer = answer.content["round"]
        for stream in ("marginals", "deltas"):
            if offer is not None and offer.get(stream) is not None and member.owned[stream]:
                self._report(member, offer["round_id"], offer["model_version"], stream)

    def _report(self, member: Member, round_id: str, model_version: str, stream: str, *, surely: bool = False) -> None:
        bucket, party = member.owned[stream].pop(0), member.party
        report_id = f"{self.dice.getrandbits(64):016x}"
        if stream == "marginals":
            body = party.counts(round_id, {bucket: FIXED_POINT}, report_id=report_id)
        else:
            values = np.zeros(BUCKETS, np.float32)
            values[bucket] = DELTA
            body = party.delta(round_id, {"w": values}, report_id=report_id, model_version=model_version)
        outgoing = Outgoing(party, report_id, round_id, stream, bucket, body)
        member.outbox.append(outgoing)
        self.deliver(member, outgoing, surely=surely)

    def deliver(self, member: Member, outgoing: Outgoing, *, surely: bool = False) -> None:
        """Send a report once, and believe the answer if one comes."""
        sending = self.world.sign(outgoing.device, outgoing.path, outgoing.body, outgoing.round_id)
        answer = self.world.send(sending) if surely else self._transmit(sending)
        if answer is None:
            return
        member.outbox.remove(outgoing)
        if answer.status == 200:
            assert answer.content["report_id"] == outgoing.report_id
            self.acknowledged.append(outgoing)
        else:
            assert answer.status in FINAL and answer.code != "replayed", answer
            member.owned[outgoing.stream].append(outgoing.bucket)
        self._retire(member)

    def _transmit(self, sending: Sending) -> Answer | None:
        """A request's fate: answered, lost on the way there or back, or cut off by the end of the server's process."""
        self.wire.append(sending)
        fate = self.dice.random()
        if fate < 0.15:
            self.counted["dropped requests"] += 1
            return None
        if fate < 0.19:
            self.counted["kills in a request"] += 1
            self.world.killed_after(self.dice.randrange(40), lambda: self.world.send(sending))
            return None
        answer = self.world.send(sending)
        if fate < 0.34:
            self.counted["dropped responses"] += 1
            return None
        return answer

    def retry(self) -> None:
        """One report that waits for its receipt."""
        waiting = [(member, outgoing) for member in self.members for outgoing in member.outbox]
        if waiting:
            self.deliver(*self.dice.choice(waiting))

    def replay(self) -> None:
        """Someone on the way sends a request again as it was; an exact copy never counts."""
        if not self.wire:
            return
        answer = self.world.send(self.dice.choice(self.wire))  # what was dropped on its way may arrive now
        assert answer.status in {200, 401, *FINAL}, answer

    def repeat(self) -> None:
        """A report that was acknowledged, signed anew: a duplicate, whatever became of its round."""
        if self.acknowledged:
            old = self.dice.choice(self.acknowledged)
            answer = self.world.send(self.world.sign(old.device, old.path, old.body, old.round_id))
            if answer.code != "device_revoked":
                assert (answer.content["report_id"], answer.content["duplicate"]) == (old.report_id, True), answer

    def alter(self) -> None:
        """The id of an acknowledged report for another body."""
        if self.acknowledged:
            old = self.dice.choice(self.acknowledged)
            answer = self.world.send(self.world.sign(old.device, old.path, old.body + b" ", old.round_id))
            assert answer.status != 200, answer

    def rotate(self) -> None:
        """A device takes a new key. Its old one signs what is in the outbox, and is revoked once that is answered."""
        member = self.dice.choice(self.members)
        member.retired.append(member.party)
        member.party = self._fresh()
        self._retire(member)

    def _retire(self, member: Member) -> None:
        from server.devices.enrolment import revoke

        for party in list(member.retired):
            if all(outgoing.device is not party for outgoing in member.outbox):
                with self.world.service.database.write() as connection:
                    revoke(connection, party.id, self.world.clock.now)
                member.retired.remove(party)

    def wait(self) -> None:
        """A moment, or long enough for nonces and rounds to expire."""
        self.world.clock.now += self.dice.choice([1.0, 20.0, 150.0, 400.0, 2500.0])

    def tick(self) -> None:
        """What the server does by itself."""
        self.world.service.tick()
        self.open_round()

    def tick_killed(self) -> None:
        """The same, and the process ends in the middle of it."""
        self.counted["kills in a tick"] += 1
        self.world.killed_after(self.dice.randrange(120), self.world.service.tick)

    def close(self) -> None:
        """An operator closes what is open; killed in the middle now and then."""
        row = self.world.opened()
        if row is not None:
            self.world.killed_after(self.dice.randrange(400), partial(self.world.service.close_round, row.id))

    def restart(self) -> None:
        self.world.restart()

    def operate(self, operations: int) -> None:
        for operation in self.dice.choices(list(OPERATIONS), list(OPERATIONS.values()), k=operations):
            self.counted[operation.__name__] += 1
            operation(self)

    def settle(self) -> None:
        """Everything that still waits is reported, without losses, in as many rounds as it takes."""
        for member in self.members:
            for outgoing in list(member.outbox):
                self.deliver(member, outgoing, surely=True)
        self._close_all()
        while any(any(member.owned.values()) for member in self.members):
            self.open_round(goal=None)
            row = self.world.opened()
            for member in self.members:
                for stream in ("marginals", "deltas"):
                    if member.owned[stream]:
                        self._report(member, row.id, row.base_model, stream, surely=True)
                assert not member.outbox, "an empty round takes one report of every device"
            self._close_all()

    def _close_all(self) -> None:
        for round_id in self.world.unfinished():
            self.world.service.close_round(round_id)


OPERATIONS: dict[Callable[[Fleet], None], float] = {
    Fleet.say: 13,
    Fleet.check_in: 26,
    Fleet.retry: 17,
    Fleet.replay: 9,
    Fleet.repeat: 6,
    Fleet.alter: 3,
    Fleet.wait: 9,
    Fleet.tick: 6,
    Fleet.tick_killed: 2,
    Fleet.close: 3,
    Fleet.restart: 2,
    Fleet.rotate: 2,
}
