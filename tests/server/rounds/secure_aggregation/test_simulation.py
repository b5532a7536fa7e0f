"""Whole rounds of secure aggregation in one process, by real devices and the server's own functions: the exact sum of
the survivors or nothing, whoever drops out; and messages that no honest device sends, refused by name of the field."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from multiprocessing import get_context
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError
from device_sdk.privacy.quantised import quantised, summed
from device_sdk.secure_aggregation import keys
from device_sdk.secure_aggregation.participant import answer
from device_sdk.wire import secure_aggregation as wire
from device_sdk.wire.messages import DeltaPlan, Message
from device_sdk.wire.secure_aggregation import NO_SHARE, AggregationTask, Roster, Stage
from server.plans.round import word_bits
from server.privacy.costs import calibrate_shares
from server.rounds.secure_aggregation import answers as checks
from server.rounds.secure_aggregation.store import Group, answered_by, next_stage
from server.rounds.secure_aggregation.unmasking import recover_secrets, sum_of
from tests.device_sdk.secure_aggregation.parties import ROUND, advertised, resigned, roster_of
from tests.server.rounds.secure_aggregation.members import ANSWERED

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
    vectors: Any, drops: Mapping[str, Stage], tamper: Mapping = MappingProxyType({}), word_bits: int = 32
) -> Outcome:
    """One round. drops: the stage that a device no longer answers. tamper: changes messages, by device and stage."""
    made = advertised(len(vectors), words=next(iter(vectors.values())).size, minimum=2)
    parties = dict(zip(sorted(vectors), made.values(), strict=True))
    assert list(parties) == list(made)
    roster = roster_of(made, word_bits=word_bits)
    for name, party in parties.items():
        checks.check_advertisement(party.participant.advertised, roster.member(name).identity_key)
    devices = {name: party.participant for name, party in parties.items()}
    outcome = Outcome(roster, Group(roster, "shares", {"keys": frozenset(roster.device_ids)}))
    try:
        while outcome.group.stage is not None:
            stage = outcome.group.stage
            received: dict[str, Message] = {}
            for name in sorted(outcome.group.expected):
                if drops.get(name) == stage:
                    continue
                task = _task(name, outcome)
                devices[name], made = answer(devices[name], parties[name].identity, task, partial(vectors.get, name))
                message = tamper[name, stage](made) if (name, stage) in tamper else made
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


def unmask(outcome: Outcome, masked: Mapping[str, bytes], revealed: list[Any]) -> NDArray[np.int64]:
    roster, dealers = outcome.roster, outcome.group.dealers
    return sum_of(roster, dealers, masked, recover_secrets(roster, dealers, masked.keys(), revealed))


def names(count: int) -> list[str]:
    return [f"device-{index:03d}" for index in range(count)]


def added(vectors: Mapping[str, NDArray[np.int64]], of: Iterable[str]) -> NDArray[np.int64]:
    return np.sum([vectors[name] for name in of], axis=0, dtype=np.int64)


def _task(name: str, outcome: Outcome) -> AggregationTask:
    """What an honest server asks of a device."""
    sent: Any = outcome.sent
    match outcome.group.stage:
        case "shares":
            needed: dict[str, Any] = {"roster": outcome.roster}
        case "masked":
            needed = {"deliveries": checks.deliveries(outcome.roster, sent["shares"].values(), name)}
        case "consistency":
            needed = {"survivors": outcome.group.survivors}
        case _:
            needed = {"signatures": {each: m.signature for each, m in sent["consistency"].items()}}
    return AggregationTask(stage=outcome.group.stage, retry_after_seconds=1.0, **needed)


MOST_DROPPED = 0.33


def drawn_vectors(rng: np.random.Generator, count: int, words: int) -> dict[str, NDArray[np.int64]]:
    """Counts as noised counts are: of either sign, a few as large as a sum can hold."""
    most = ((1 << 31) - 1) // count
    vectors = rng.integers(-500, 500, (count, words))
    vectors[rng.random((count, words)) < 0.01] = most
    vectors[rng.random((count, words)) < 0.01] = -most
    return dict(zip(names(count), vectors, strict=True))


def drawn_drops(rng: np.random.Generator, count: int) -> dict[str, Stage]:
    """At some of the four stages a share of the devices between 0 and 33 % of those left falls silent."""
    left, drops = names(count), dict[str, Stage]()
    for stage in ANSWERED:
        rate = rng.uniform(0, MOST_DROPPED) * (rng.random() < 0.5)
        drops |= dict.fromkeys(rng.choice(left, size=round(rate * len(left)), replace=False).tolist(), stage)
        left = [name for name in left if name not in drops]
    return drops


MASKED = DeltaPlan(trust="distributed", minimum_survivors=34, noise_stddev=0.75)


def drawn_deltas(rng: np.random.Generator, count: int, values: int) -> dict[str, NDArray[np.int64]]:
    """As devices quantise and noise them, some of them longer than the bound and all in one place."""
    deltas = rng.normal(size=(count, values)).astype(np.float32) * rng.uniform(0, 2, (count, 1)) / np.sqrt(values)
    deltas[rng.random(count) < 0.1] = np.eye(1, values, dtype=np.float32)
    return {
        name: quantised({"w": delta}, MASKED, ROUND)
        for name, delta in zip(names(count), deltas.astype(np.float32), strict=True)
    }


def check_round(seed: int, count: int, words: int, masked: bool = False) -> str:
    """One simulated round of counts, or of ``masked`` deltas, against plain addition. Returns ``exact``, or the stage
    at which it was given up."""
    rng = np.random.default_rng(seed)
    vectors = (drawn_deltas if masked else drawn_vectors)(rng, count, words)
    drops = drawn_drops(rng, count)
    outcome = simulate(vectors, drops, word_bits=word_bits(MASKED, count, words) if masked else 32)
    threshold = -(-2 * count // 3)
    lost, left = None, count
    for stage in ANSWERED:
        left -= sum(dropped == stage for dropped in drops.values())
        if left < threshold and lost is None:
            lost = stage
    if lost is not None:
        assert outcome.sum is None, f"seed {seed}: a sum with too few at {lost}"
        assert outcome.note.startswith(f"{lost}: found answers of"), outcome.note
        return lost
    survivors = [name for name in vectors if drops.get(name) not in ("shares", "masked")]
    assert outcome.sum is not None, f"seed {seed}: {outcome.note}"
    assert list(outcome.group.survivors) == survivors
    np.testing.assert_array_equal(outcome.sum, added(vectors, survivors))
    return "exact"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 12])
def test_rounds_are_exact_or_abandoned(count: int) -> None:
    assert Counter(check_round(seed, count, 20) for seed in range(4)).total() == 4


@pytest.mark.parametrize(("count", "values"), [(2, 64), (3, 64), (12, 100)])
def test_rounds_of_masked_deltas_are_exact_or_abandoned(count: int, values: int) -> None:
    assert Counter(check_round(seed, count, values, masked=True) for seed in range(4)).total() == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "count", "words", "masked"),
    [(1000, 50, 200, False), (1000, 50, 1024, True), (20, 20, 65_536, True)],
)
def test_a_thousand_rounds_of_counts_and_of_deltas(rounds: int, count: int, words: int, masked: bool) -> None:
    many = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(many, get_context("spawn"), initializer=remember_signatures) as pool:
        check = partial(check_round, count=count, words=words, masked=masked)
        ends = Counter(pool.map(check, range(rounds), chunksize=10))
    print(dict(ends))
    assert ends.total() == rounds
    assert ends["exact"] >= 0.3 * rounds, "the rounds are to try both ends"
    assert all(ends[stage] >= rounds // 100 for stage in ANSWERED[1:]), ends


@pytest.mark.slow
def test_the_whole_path_is_the_arithmetic() -> None:
    """Two hundred runs of the canary's audit by the protocol itself, at its smallest group."""
    plan = calibrate_shares(DeltaPlan(trust="distributed", minimum_survivors=2, bits=12), 1.0, 1)
    bits = word_bits(plan, 2, 64)
    for run in range(200):
        deltas = np.zeros((2, 64), np.float32)
        deltas[0, 0] = run % 2
        vectors = {f"device-{index:03d}": quantised({"w": delta}, plan, ROUND) for index, delta in enumerate(deltas)}
        total = simulate(vectors, {}, word_bits=bits).sum
        assert total is not None
        np.testing.assert_array_equal(total, sum(vectors.values()))
        np.testing.assert_array_equal(summed(total, plan, ROUND), summed(sum(vectors.values()), plan, ROUND))


def remember_signatures() -> None:
    """In one process fifty devices check the same signatures: once is enough."""
    keys.signed_by = lru_cache(4096)(keys.signed_by)


VECTORS = {name: np.arange(8, dtype=np.int64) * (index - 1) for index, name in enumerate(names(6))}
HONEST = simulate(VECTORS, {"device-005": "masked"})


def changed(**fields: Any) -> Tamper:
    return lambda message: message.model_copy(
        update={name: value(message) if callable(value) else value for name, value in fields.items()}
    )


@pytest.mark.parametrize(
    ("device", "stage", "tamper", "note"),
    [
        (
            "device-001",
            "shares",
            changed(sealed=lambda m: m.sealed[1:]),
            "sealed: found shares for 1 device",
        ),
        ("device-001", "shares", changed(sealed=lambda m: (*m.sealed, bytes(50))), "sealed: found shares for 3"),
        ("device-001", "masked", changed(masked=bytes(31)), "masked: found 31 bytes, expected 32"),
        ("device-001", "masked", changed(masked=bytes(36)), "masked: found 36 bytes"),
        ("device-001", "consistency", changed(signature=bytes(64)), "signature: not this device's over the 5 surv"),
        ("device-000", "unmasking", changed(shares=lambda m: m.shares[1:]), "shares: found 5, expected one place"),
        ("device-000", "unmasking", changed(shares=lambda m: (*m.shares[:5], b"\xfe" * 17)), "shares.device-005: "),
    ],
)
def test_tampered_messages(device: str, stage: wire.Stage, tamper: Tamper, note: str) -> None:
    outcome = simulate(VECTORS, {"device-005": "masked"}, {(device, stage): tamper})
    assert outcome.sum is None
    assert outcome.note.startswith(note), outcome.note


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sharing_key": bytes(32)}, "sharing_key: found a point of small order"),
        ({"masking_key": b"\x01" + bytes(31)}, "masking_key: found a point of small order"),
        ({"masking_key": None}, "masking_key: found the sharing_key again"),
    ],
)
def test_keys_that_are_of_no_use(changes: dict[str, Any], message: str) -> None:
    party = advertised(1)["device-000"]
    own = party.participant.advertised
    changes = {name: own.sharing_key if value is None else value for name, value in changes.items()}
    with pytest.raises(ProtocolError, match=message):
        checks.check_advertisement(resigned(party, **changes), own.identity_key)


def test_too_few_shares_make_no_sum() -> None:
    masked = {name: message.masked for name, message in HONEST.sent["masked"].items()}  # type: ignore[attr-defined]
    revealed: list[Any] = list(HONEST.sent["unmasking"].values())
    with pytest.raises(ProtocolError, match="device-000: shares: found 3, expected at least 4"):
        unmask(HONEST, masked, revealed[:3])
    with pytest.raises(ProtocolError, match="device-005: shares: found 0"):
        unmask(HONEST, masked, [changed(shares=lambda m: (*m.shares[:5], NO_SHARE))(each) for each in revealed])
