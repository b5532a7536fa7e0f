"""Whole rounds of secure aggregation in one process: real devices and the server's own functions, without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError
from device_sdk.secure_aggregation.participant import Participant, agree, mask, reveal, share
from device_sdk.wire.messages import Message
from device_sdk.wire.secure_aggregation import Roster, Stage
from server.rounds.secure_aggregation import answers as checks
from server.rounds.secure_aggregation.coordinator import Group, answered_by, next_stage
from server.rounds.secure_aggregation.unmasking import recover_secrets, sum_of
from tests.device_sdk.secure_aggregation.parties import Party, advertised, roster_of

Tamper = Callable[[Message], Message]


@dataclass
class Outcome:
    """sum: int64 [words], None where the round was abandoned, then note says at which stage. group: as it ended.
    sent: every message by stage and device."""

    roster: Roster
    group: Group
    sum: NDArray[np.int64] | None = None
    note: str = ""
    sent: dict[Stage, dict[str, Message]] = field(default_factory=dict)


def simulate(
    vectors: Mapping[str, NDArray[np.int64]],
    drops: Mapping[str, Stage],
    *,
    word_bits: int = 32,
    minimum: int = 2,
    tamper: Mapping[tuple[str, Stage], Tamper] | None = None,
) -> Outcome:
    """One round. drops: the stage that a device no longer answers. tamper: what becomes of a message on its way."""
    words = next(iter(vectors.values())).size
    made = advertised(len(vectors), words=words, minimum=minimum)
    parties = dict(zip(sorted(vectors), made.values(), strict=True))
    assert list(parties) == list(made)
    roster = roster_of(made, word_bits=word_bits)
    for name, party in parties.items():
        checks.check_advertisement(party.participant.advertised, roster.member(name).identity_key)
    devices = {name: party.participant for name, party in parties.items()}
    outcome = Outcome(roster, begin(roster))
    try:
        while outcome.group.stage is not None:
            stage = outcome.group.stage
            received: dict[str, Message] = {}
            for name in sorted(outcome.group.expected):
                if drops.get(name) == stage:
                    continue
                devices[name], message = _act(parties[name], devices[name], outcome, vectors[name])
                message = (tamper or {}).get((name, stage), lambda each: each)(message)
                checks.check_answer(message, outcome.group)
                received[name] = message
                outcome.group = answered_by(outcome.group, name)
            outcome.sent[stage] = received
            outcome.group = next_stage(outcome.group)
        masked = {name: message.masked for name, message in outcome.sent["masked"].items()}  # type: ignore[attr-defined]
        outcome.sum = unmask(outcome, masked, list(outcome.sent["unmasking"].values()))
    except ProtocolError as error:
        outcome.note = str(error)
    return outcome


def begin(roster: Roster) -> Group:
    return Group(roster, "shares", {"keys": frozenset(roster.device_ids)})


def unmask(outcome: Outcome, masked: Mapping[str, bytes], revealed: list[Any]) -> NDArray[np.int64]:
    roster, dealers = outcome.roster, outcome.group.dealers
    return sum_of(roster, dealers, masked, recover_secrets(roster, dealers, masked.keys(), revealed))


def names(count: int) -> list[str]:
    return [f"device-{index:03d}" for index in range(count)]


def added(vectors: Mapping[str, NDArray[np.int64]], of: Iterable[str]) -> NDArray[np.int64]:
    return np.sum([vectors[name] for name in of], axis=0, dtype=np.int64)


def _act(party: Party, device: Participant, outcome: Outcome, vector: NDArray[np.int64]) -> tuple[Participant, Message]:
    """A device's answer to what an honest server sends it."""
    match outcome.group.stage:
        case "shares":
            device = share(device, outcome.roster)
            answer: Message | None = device.dealt
        case "masked":
            dealt = outcome.sent["shares"]
            own = {name: each.sealed[party.id] for name, each in dealt.items() if name != party.id}  # type: ignore[attr-defined]
            device = mask(device, own, vector)
            answer = device.masked
        case "consistency":
            device = agree(device, party.identity, outcome.group.survivors)
            answer = device.agreed
        case _:
            signed = {name: each.signature for name, each in outcome.sent["consistency"].items()}  # type: ignore[attr-defined]
            device = reveal(device, signed)
            answer = device.revealed
    assert answer is not None
    return device, answer
