"""Whoever is in a sum that the server could compute is charged for it, however the group ends: real processes."""

from __future__ import annotations

from collections import Counter

import numpy as np
from sqlalchemy import select

from server.storage.schema import ledger, releases
from tests.server.parties import until
from tests.server.rounds.secure_aggregation.members import Member, through
from tests.server.rounds.secure_aggregation.processes import Fleet


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
    assert {member.step() for member in members[:3]} == {"unmasking"}
    assert members[3].step() == "unmasking"
    round_id = members[0].round_id
    assert until(lambda: [each["stage"] for each in fleet.round(round_id)["groups"]] == ["done", "abandoned"])
    found = fleet.operator.close(round_id)
    assert (found["state"], found["reports"]["marginals"]) == ("published", 3)
    assert found["releases"]["marginals"]["reports"] == 3
    np.testing.assert_array_equal(fleet.released(round_id), np.sum([member.vector for member in members[:3]], axis=0))
    (release,) = fleet.rows(select(releases))
    assert release.reports == 3
    assert charged(fleet) == once(members)
