"""No device and no group stops another's round, and who is in a sum that the server could compute is charged for it,
however the group ends: real processes."""

from collections import Counter
from hashlib import sha256

import numpy as np
from sqlalchemy import select, text

from server.storage.schema import ledger, releases
from tests.server.parties import NO_NOISE, until
from tests.server.rounds.secure_aggregation.members import Member, through
from tests.server.rounds.secure_aggregation.processes import Fleet

WORDS_PLAN = {"epsilon": NO_NOISE, "delta": 1e-6}


def test_no_id_that_a_device_used_before_stops_its_round_or_the_next(fleet: Fleet) -> None:
    """A masked vector's bytes are its sender's: whatever is computed from them, it can use for something else first."""
    members = fleet.join(fleet.parties(4), words=WORDS_PLAN)
    through(members, "shares")
    hostile = members[0]
    message = hostile.answer(hostile.task())
    digest = sha256(message.model_dump_json().encode()).hexdigest()
    hostile.party.send_words(hostile.round_id, "zebra", report_id=digest[:32]).raise_for_status()
    assert hostile.post("masked", message).status_code == 200
    assert {member.step() for member in members[1:]} == {"masked"}
    for _ in range(2):
        for member in members:
            member.step()
    fleet.sums(members)
    fleet.goes(fleet.parties(3))


def test_the_id_of_one_devices_report_is_free_for_every_other(fleet: Fleet) -> None:
    round_id = fleet.operator.open(words=WORDS_PLAN, deltas={})
    first, second, third = fleet.parties(3)
    array = {"w": np.full(4, 0.5, np.float32)}
    assert first.send_words(round_id, "zebra", report_id="same").status_code == 200
    assert second.send_counts(round_id, {1: 1}, report_id="same").status_code == 200
    assert third.send_delta(round_id, array, report_id="same").status_code == 200
    assert fleet.operator.close(round_id)["reports"] == {"marginals": 1, "deltas": 1, "words": 1}


def test_a_group_that_keeps_failing_ends_abandoned_and_holds_no_other_up(fleet: Fleet) -> None:
    members = fleet.join(fleet.parties(6), groups={"size": 3, "stage_seconds": 600})
    through(members, "consistency")
    with fleet.database.write() as connection:
        connection.execute(text("UPDATE aggregation_groups SET roster = 'damaged' WHERE id = 1"))
    assert {member.step() for member in members[3:]} == {"unmasking"}
    until(lambda: fleet.round(members[0].round_id)["groups"][1]["stage"] == "done")
    group = until(lambda: (now := fleet.round(members[0].round_id)["groups"][0])["stage"] == "abandoned" and now)
    assert group["note"].startswith("kept failing: ValidationError"), group
    fleet.sums(members[3:])


def test_a_round_that_keeps_failing_ends_abandoned_and_holds_no_other_up(fleet: Fleet) -> None:
    damaged = fleet.operator.open()
    assert fleet.parties(1)[0].send_counts(damaged, {1: 1}).status_code == 200
    with fleet.database.write() as connection:
        connection.execute(text("UPDATE rounds SET state = 'closing', settings = '{\"minimum\": \"damaged\"}'"))
    fleet.goes(fleet.parties(3))
    found = until(lambda: (now := fleet.round(damaged))["state"] == "abandoned" and now)
    assert found["note"].startswith("kept failing: ValidationError"), found["note"]


def charged(fleet: Fleet) -> Counter[tuple[str, str]]:
    """How often each device was charged, by round."""
    return Counter((row.device_id, row.round_id) for row in fleet.rows(select(ledger)))


def once(members: list[Member]) -> Counter[tuple[str, str]]:
    return Counter((member.party.id, member.round_id) for member in members)


def test_survivors_are_charged_when_unmasking_begins_even_where_the_group_is_stopped(fleet: Fleet) -> None:
    """Eight of nine reveals are in and six would do: from then on the sum is the server's to compute."""
    members = fleet.join(fleet.parties(9))
    round_id = members[0].round_id
    through(members, "masked")
    assert charged(fleet) == {}, "nobody can be charged for a sum that nobody can compute"
    assert {member.step() for member in members} == {"consistency"}
    assert {member.task().stage for member in members} == {"unmasking"}
    assert charged(fleet) == once(members), "the next message that the server gets may give the sum away"
    assert {member.step() for member in members[:8]} == {"unmasking"}
    fleet.kill(members)
    fleet.operator.post(f"rounds/{round_id}/abandon")
    assert charged(fleet) == once(members)
    found = fleet.round(round_id)
    assert (found["state"], found["reports"]["marginals"], found["releases"]) == ("abandoned", 0, {})
    assert fleet.operator.get("privacy")["streams"]["marginals"]["epsilon"] > 0
    again = fleet.join([member.party for member in members], seed=1)
    through(again, "unmasking")
    assert fleet.operator.close(again[0].round_id)["state"] in ("closing", "published")
    assert until(lambda: fleet.round(again[0].round_id)["state"] == "published")
    assert charged(fleet) == once(members) + once(again)


def test_a_group_without_a_sum_is_charged_and_in_no_release(fleet: Fleet) -> None:
    """Of one round's two groups one is never unmasked: its devices are charged, and only the other's are released."""
    members = fleet.join(fleet.parties(6), groups={"size": 3, "stage_seconds": 4})
    through(members, "consistency")
    assert {member.step() for member in members[:3]} == {"unmasking"} and members[3].step() == "unmasking"
    round_id = members[0].round_id
    assert until(lambda: [each["stage"] for each in fleet.round(round_id)["groups"]] == ["done", "abandoned"])
    found = fleet.operator.close(round_id)
    assert (found["state"], found["reports"]["marginals"]) == ("published", 3)
    assert found["releases"]["marginals"]["reports"] == 3
    np.testing.assert_array_equal(fleet.released(round_id), np.sum([member.vector for member in members[:3]], axis=0))
    (release,) = fleet.rows(select(releases))
    assert release.reports == 3 and charged(fleet) == once(members)
