"""Rounds of secure aggregation over the server's routes: exact sums, drop-outs, repeats, charges, and what is kept."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select

from device_sdk.privacy.contributions import share_variance
from device_sdk.secure_aggregation.keys import advertised_bytes
from device_sdk.secure_aggregation.shares import PRIME, read_share, to_bytes
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from device_sdk.wire.secure_aggregation import Stage, StageReceipt, SurvivorSignature
from server.plans.round import word_bits
from server.storage.schema import aggregation_groups, aggregation_messages, exclusions, ledger, reports
from tests.device_sdk.privacy.canaries import Canary, Needles
from tests.server.parties import HEADERS, WORDS, Party, refusal, serving
from tests.server.rounds.secure_aggregation.members import ANSWERED, PLAN, Member, through, vectors
from tests.server.rounds.secure_aggregation.processes import Site


class Server(Site):
    """A server whose clock can be moved forward, and whose rounds move on when they are told."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.changes, self.late = folder, changes, 0.0
        self.open()

    def open(self) -> None:
        long = {"window_seconds": 1e9, "tick_seconds": 1e9}
        self._open = serving(self.folder, clock=lambda: time.time() + self.late, **long, **self.changes)
        self.http = self._open.__enter__()
        self.own: Any = self.http.app.state.service
        self.database = self.own.database

    def close(self) -> None:
        self._open.__exit__(None, None, None)

    def tick(self, seconds: float = 0.0) -> None:
        self.late += seconds
        self.own.tick()

    def members(self, count: int, *, size: int = 50, **changes: Any) -> list[Member]:
        """Devices that joined a new round."""
        return self.join(self.parties(count), groups={"size": size, "stage_seconds": 600}, **changes)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    found = Server(tmp_path)
    yield found
    found.close()


def added(members: list[Member]) -> NDArray[np.int64]:
    return np.sum([member.vector for member in members], axis=0)


def test_a_round_from_its_opening_to_new_marginals(server: Server) -> None:
    members = server.members(6)
    round_id = members[0].round_id
    assert {member.task().stage for member in members} == {"waiting"}, "the group may still grow"
    assert members[0].party.check_in().json()["round"] is None, "it has joined"
    closing = server.operator.close(round_id)
    assert (closing["state"], closing["reports"]["marginals"]) == ("closing", 6)
    through(members, "unmasking")
    assert members[0].task().stage in ("waiting", "done"), "the server takes the sum in its own time"
    server.tick()
    assert {member.task().stage for member in members} == {"done"}
    found = server.round(round_id)
    assert found["state"] == "published"
    assert (found["reports"]["marginals"], found["releases"]["marginals"]["reports"]) == (6, 6)
    assert [(group["stage"], group["devices"], group["note"]) for group in found["groups"]] == [("done", 6, "")]
    assert found["releases"]["marginals"]["mechanism"]["trust"] == "distributed"
    np.testing.assert_array_equal(server.released(round_id), added(members))
    charges = server.rows(select(ledger))
    assert {charge.device_id for charge in charges} == {member.party.id for member in members}
    assert {(charge.trust, charge.mechanism) for charge in charges} == {("distributed", "discrete_gaussian")}
    assert {row.body for row in server.rows(select(aggregation_messages))} == {None}
    assert {row.total for row in server.rows(select(aggregation_groups))} == {None}


def test_masked_vectors_are_counted_as_reports(server: Server) -> None:
    members = server.members(3)
    server.operator.close(members[0].round_id)
    through(members, "shares")
    for member in members[:2]:
        member.step()
    path = f"/v1/rounds/{members[0].round_id}/aggregation/masked"
    again = members[0].party.post(path, members[0].sent[-1], members[0].round_id)
    assert again.json()["duplicate"] is True
    assert members[2].post("masked", b"").status_code == 422, "no message at all is no report"
    again = members[0].party.post(path, bytes(4 * WORDS), members[0].round_id)
    assert refusal(again) == (409, "message_conflict")
    counted = {
        line.split('outcome="')[1].split('"')[0]: float(line.split()[-1])
        for line in server.http.get("/metrics", headers=HEADERS).text.splitlines()
        if line.startswith("idiolect_reports_total{")
    }
    assert counted == {"accepted": 2.0, "duplicate": 1.0, "refused": 1.0}


@pytest.mark.parametrize(
    ("stage", "lost"),
    [("shares", 2), ("masked", 2), ("masked", 3), ("consistency", 2), ("unmasking", 2), ("unmasking", 3)],
)
def test_drop_outs_at_a_stage(server: Server, stage: Stage, lost: int) -> None:
    """Of six devices four must be left: two may go at any stage, and a third ends the round without a sum. Counts come
    back where nothing was charged, as it is once shares may be known."""
    members = server.members(6)
    round_id = members[0].round_id
    server.operator.close(round_id)
    gone, left = members[:lost], members[lost:]
    for number, each in enumerate(ANSWERED):
        found = {member.step() for member in (members if number < ANSWERED.index(stage) else left)}
        assert found == {each} or (lost == 3 and number > ANSWERED.index(stage) and found == {"abandoned"})
        server.tick(601 if each == stage else 0)
    found_round = server.round(round_id)
    if lost == 3:
        assert found_round["state"] == "abandoned"
        assert {member.task().stage for member in members} == {"done" if stage == "unmasking" else "abandoned"}
        charged = {charge.device_id for charge in server.rows(select(ledger))}
        assert charged == ({member.party.id for member in members} if stage == "unmasking" else set())
        assert {report.counted for report in server.rows(select(reports))} <= {False}
        (group,) = server.rows(select(aggregation_groups))
        assert group.note.startswith(f"{stage}: found answers of 3 of 6 devices")
        return
    survivors = members if stage in ("consistency", "unmasking") else left
    assert found_round["state"] == "published"
    np.testing.assert_array_equal(server.released(round_id), added(survivors))
    assert {charge.device_id for charge in server.rows(select(ledger))} == {member.party.id for member in survivors}
    assert found_round["reports"]["marginals"] == len(survivors)
    assert {member.task().stage for member in left} == {"done"}
    assert {member.task().stage for member in gone} == {"done" if survivors == members else "dropped"}


def test_groups_fill_and_the_rest_is_shared_out(server: Server) -> None:
    members = server.members(7, size=3)
    assert [member.task().stage for member in members] == ["shares"] * 6 + ["waiting"]
    round_id = members[0].round_id
    through(members[:6], "unmasking")
    server.tick()
    assert server.round(round_id)["state"] == "open" and members[6].task().stage == "waiting"
    found = server.operator.close(round_id)
    assert found["state"] == "published", "one device alone is no group"
    assert members[6].task().stage == "abandoned"
    np.testing.assert_array_equal(server.released(round_id), added(members[:6]))
    assert found["reports"]["marginals"] == 6 and len(server.rows(select(ledger))) == 6


def test_the_goal_closes_a_round(server: Server) -> None:
    members = server.members(4, goal=4)
    round_id = members[0].round_id
    assert server.round(round_id)["state"] == "closing"
    assert refusal(Member(Party(server.http).enrol(), round_id, vectors(1)[0]).join()) == (409, "round_closed")
    server.tick()
    through(members, "unmasking")
    server.tick()
    np.testing.assert_array_equal(server.released(round_id), added(members))


def test_every_message_counts_once(server: Server) -> None:
    """Also by a server that was killed before every stage."""
    members = server.members(3, size=3)
    for stage in ("shares", "masked", "consistency", "unmasking"):
        server.close()
        server.open()
        for member in members:
            member.party.http = server.http
        message = members[0].answer(members[0].task())
        first, again = (members[0].post(stage, message) for _ in range(2))
        assert StageReceipt.model_validate_json(first.content) == StageReceipt(stage=stage)
        assert StageReceipt.model_validate_json(again.content) == StageReceipt(stage=stage, duplicate=True)
        assert members[0].task().stage == "waiting"
        for member in members[1:]:
            assert member.step() == stage
        assert StageReceipt.model_validate_json(members[0].post(stage, message).content).duplicate
    assert members[0].join().json()["duplicate"]
    assert refusal(Member(members[0].party, members[0].round_id, members[0].vector).join()) == (409, "message_conflict")
    server.close()
    server.open()
    server.tick()
    server.operator.close(members[0].round_id)
    np.testing.assert_array_equal(server.released(members[0].round_id), added(members))


def test_out_of_turn(server: Server) -> None:
    members = server.members(3, size=3)
    stranger = Member(Party(server.http).enrol(), members[0].round_id, vectors(1)[0])
    ids = {"device_id": stranger.party.id, "round_id": stranger.round_id}
    signature = SurvivorSignature(signature=bytes(64), **ids)
    assert refusal(stranger.post("consistency", signature)) == (409, "not_joined")
    own = signature.model_copy(update={"device_id": members[0].party.id})
    assert refusal(members[0].post("consistency", own)) == (409, "other_stage")
    assert refusal(members[0].post("nonsense", own))[0] == 422
    assert refusal(members[0].post("", b"{}")) == (422, "bad_message")
    through(members, "shares")
    message = members[0].answer(members[0].task())
    assert message is not None
    server.tick(601)  # nobody was in time
    assert refusal(members[0].post("masked", message)) == (409, "other_stage")
    assert members[0].task().stage == "abandoned"


@pytest.mark.parametrize(
    ("stage", "body", "field"),
    [
        ("shares", bytes(51), "sealed"),
        ("shares", bytes(100), "sealed"),
        ("masked", b"?", "masked"),
        ("masked", b"", "masked"),
        ("consistency", bytes(64), "signature"),
        ("consistency", bytes(65), "signature"),
        ("unmasking", bytes(3), "shares"),
        ("unmasking", bytes(17), "shares"),
        ("unmasking", b"\xfe" * 51, "shares"),
    ],
)
def test_malformed_messages_are_refused_and_the_device_may_try_again(server, stage: Stage, body, field: str) -> None:
    members = server.members(3, size=3)
    if stage != "shares":
        through(members, ANSWERED[ANSWERED.index(stage) - 1])
    message = members[0].answer(members[0].task())
    answer = members[0].party.post(f"/v1/rounds/{members[0].round_id}/aggregation/{stage}", body, members[0].round_id)
    assert refusal(answer) == (422, "bad_message") and (answer.json()["field"] or "").startswith(field)
    assert members[0].post(stage, message).status_code == 200


def test_keys_are_checked_when_they_come(server: Server) -> None:
    members = server.members(2)
    thief = Member(Party(server.http).enrol(), members[0].round_id, vectors(1)[0])
    own = thief.participant.advertised
    for changes, field in (
        ({"sharing_key": members[0].participant.advertised.sharing_key}, "sharing_key"),
        ({"identity_key": members[0].participant.advertised.identity_key}, "identity_key"),
        ({"masking_key": bytes(32)}, "masking_key"),
    ):
        changed = own.model_copy(update=changes)
        changed = changed.model_copy(update={"signature": thief.party.key.sign(advertised_bytes(changed))})
        answer = thief.post("keys", changed)
        assert refusal(answer) == (422, "bad_message") and answer.json()["field"] == field
    unsigned = thief.post("keys", own.model_copy(update={"signature": members[0].participant.advertised.signature}))
    assert refusal(unsigned) == (422, "bad_message") and unsigned.json()["field"] == "signature"
    assert refusal(thief.post("keys", own.model_copy(update={"subject": "e" * 64}))) == (409, "other_words")
    assert thief.join().status_code == 200


def test_counts_in_the_clear_are_refused_and_masks_elsewhere(server: Server) -> None:
    """Two modes that exclude each other: either the server checks every report, or it sees none."""
    (member,) = server.members(1)
    assert refusal(member.party.send_counts(member.round_id, {1: 1})) == (422, "bad_counts")
    server.operator.post(f"rounds/{member.round_id}/abandon")
    assert member.task().stage == "abandoned"
    assert refusal(Member(member.party, server.operator.open(), member.vector).join()) == (409, "not_collected")


def test_a_device_is_in_one_group_at_a_time_and_within_its_cap(tmp_path: Path) -> None:
    server = Server(tmp_path, marginals_cap=12.0)
    members = server.members(2)
    server.operator.close(members[0].round_id)
    second = server.operator.open(marginals=PLAN, minimum=2, groups={"size": 2, "stage_seconds": 600})
    again = [Member(member.party, second, member.vector) for member in members]
    assert refusal(again[0].join()) == (409, "busy"), "its charge in the first round is not known yet"
    through(members, "unmasking")
    server.tick()
    assert refusal(again[0].join()) == (403, "privacy_cap") and members[0].party.check_in().json()["round"] is None
    server.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups": {"size": 2}, "minimum": 3, "marginals": PLAN | {"minimum_survivors": 3}}, "groups.size: found 2"),
        ({"groups": {"size": 1}}, "greater than or equal to 2"),
        ({"marginals": PLAN | {"max_weight": 1.0, "epsilon": 1e6}}, "a share of variance"),
    ],
)
def test_plans_that_no_group_can_follow(server: Server, changes: dict[str, Any], message: str) -> None:
    plan = {"marginals": PLAN, "minimum": 2} | changes
    answer = server.http.post("/v1/operator/rounds", headers=HEADERS, json={"settings": plan})
    assert answer.status_code == 422 and message in answer.json()["detail"]


def test_words_are_wide_enough_for_the_noise() -> None:
    """Sixteen deviations of every device's noise, and its counts, fit the sum."""
    for epsilon, bits in ((1.0, 32), (1e-3, 32), (1e-6, 64)):
        plan = MarginalPlan.model_validate(PLAN | {"max_weight": 1.0, "epsilon": epsilon})
        most = (2 ** (word_bits(plan, 50, WORDS) - 1) - 1) // 50
        assert word_bits(plan, 50, WORDS) == bits and FIXED_POINT + 16 * share_variance(plan) ** 0.5 <= most


def canary(name: str, vector: NDArray[np.int64]) -> Canary:
    """Four neighbouring words at a time, as bytes and as text. Shorter ones would be found by chance."""
    forms: dict[str, bytes] = {}
    for start in range(0, WORDS // 8 * 8, 8):
        words = vector[start : start + 4]
        forms |= {f"{kind} from {start}": words.astype(kind).tobytes() for kind in ("<i4", "<i8")}
        forms |= {f"{mark!r} from {start}": mark.join(map(str, words.tolist())).encode() for mark in (",", ", ")}
    return Canary(name, forms)


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def test_the_server_never_holds_a_vector(server: Server) -> None:
    """The files of the database and everything that was sent, at every stage: no device's counts, in any form."""
    members = server.members(4, size=4)
    through(members, "masked")
    _search(server, members)
    through(members, "unmasking", "consistency")
    _search(server, members)
    server.tick()
    server.operator.close(members[0].round_id)
    _search(server, members)
    np.testing.assert_array_equal(server.released(members[0].round_id), added(members))
    assert Needles([canary("sum", added(members))]).found(kept(server.folder)), "what is kept is found"


def _search(server: Server, members: list[Member]) -> None:
    everything = kept(server.folder) + b"".join(body for member in members for body in member.sent)
    assert Needles([canary(member.party.id, member.vector) for member in members]).found(everything) == set()


def finish(server: Server, members: list[Member]) -> dict[str, Any]:
    """The members' round when it has ended."""
    server.tick()
    server.operator.close(members[0].round_id)
    server.tick()
    return server.round(members[0].round_id)


@pytest.mark.parametrize("added_to_one_word", [2**30, -(2**30)])
def test_one_device_is_not_the_sum_of_all(server: Server, added_to_one_word: int) -> None:
    """A vector that nobody sees is bounded as part of the sum: at worst its group has none."""
    members = sorted(server.members(6, size=6), key=lambda member: member.party.id)
    members[0].vector = members[0].vector.copy()
    members[0].vector[7] += added_to_one_word
    through(members, "unmasking")
    found = finish(server, members)
    said = "was said" if added_to_one_word > 0 else "was not said"
    assert found["state"] == "abandoned" and found["groups"][0]["note"].startswith(f"sum: a word {said}, found")
    assert server.http.get("/v1/marginals/0").status_code == 200 and found["releases"] == {}


def test_four_of_twelve_that_lie_alike_have_no_honest_device_left_out(server: Server) -> None:
    """Two of them among the first eight holders, so that the polynomial of the first eight is another one with the same
    secret, on which the honest ones after them are not."""
    members = sorted(server.members(12, size=12), key=lambda member: member.party.id)
    liars = [*members[:2], *members[10:]]
    through(members, "consistency")
    for member in members:
        message: Any = member.answer(member.task())
        if member in liars:
            point = member.participant.roster.point(member.party.id)
            off = 12345 * point
            for zero in range(3, 9):
                off = off * (point - zero) % PRIME
            shares = tuple(to_bytes((read_share(share) + off) % PRIME) for share in message.shares)
            message = message.model_copy(update={"shares": shares})
        member.post("unmasking", message).raise_for_status()
    finish(server, members)
    assert server.rows(select(exclusions)) == []
    np.testing.assert_array_equal(server.released(members[0].round_id), added(members))


def test_who_deals_falsely_and_says_nothing_stops_one_group_and_no_second(server: Server) -> None:
    """Of five, where four are needed: with it silent, nothing is left to tell false shares from true ones by."""
    parties = server.parties(5)
    members = server.join(parties, groups={"size": 5, "stage_seconds": 600})
    hostile = next(member for member in members if member.party is parties[0])
    hostile.participant = hostile.participant.model_copy(update={"seed": bytes(16)})
    through(members, "consistency")
    for member in members:
        if member is not hostile:
            member.step()
    server.tick(601)
    assert finish(server, members)["state"] == "abandoned"
    assert [row.device_id for row in server.rows(select(exclusions))] == [parties[0].id]


def test_a_charge_that_is_due_counts_towards_the_cap(tmp_path: Path) -> None:
    """A device that waits in a closing round's group has not been charged for it yet."""
    server = Server(tmp_path, marginals_cap=12.0)
    members = server.members(2)
    server.operator.close(members[0].round_id)
    central = {"epsilon": 8.0, "delta": 1e-6, "mechanism": "discrete_gaussian"}
    second, party = server.operator.open(marginals=central, minimum=1), members[0].party
    assert party.check_in().json()["round"] is None
    assert refusal(party.send_counts(second, {1: 256})) == (403, "privacy_cap")
    server.close()


@pytest.mark.parametrize("stage", ["consistency", "masked"])
def test_a_stage_takes_no_more_bytes_than_its_message_has(server: Server, stage: Stage) -> None:
    """Or a few devices could hold all of the room that the server has for bodies."""
    members = server.members(2, size=2)
    through(members, ANSWERED[ANSWERED.index(stage) - 1])
    path = f"/v1/rounds/{members[0].round_id}/aggregation/{stage}"
    answer = members[0].party.post(path, bytes(100_000), members[0].round_id)
    assert refusal(answer) == (413, "too_large")
