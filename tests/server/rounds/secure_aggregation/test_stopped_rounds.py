"""No device and no group stops another's round, and a server whose rounds stand still says so: real processes."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
from sqlalchemy import text

from tests.server.parties import NO_NOISE, until
from tests.server.rounds.secure_aggregation.members import through
from tests.server.rounds.secure_aggregation.processes import Fleet

WORDS_PLAN = {"epsilon": NO_NOISE, "delta": 1e-6}


def test_no_id_that_a_device_used_before_stops_its_round_or_the_next(fleet: Fleet) -> None:
    """A masked vector's bytes are its sender's: whatever is computed from them, it can use for something else first."""
    members = fleet.join(fleet.parties(4), words=WORDS_PLAN)
    through(members, "shares")
    hostile = members[0]
    message = hostile.answer(hostile.task())
    assert message is not None
    digest = sha256(message.model_dump_json().encode()).hexdigest()
    sent = hostile.party.send_words(hostile.round_id, "zebra", report_id=digest[:32])
    assert sent.status_code == 200, sent.text
    assert hostile.post("masked", message).status_code == 200
    assert {member.step() for member in members[1:]} == {"masked"}
    for _ in range(2):
        for member in members:
            member.step()
    fleet.sums(members)
    after = fleet.join(fleet.parties(3), seed=1)
    through(after, "unmasking")
    fleet.sums(after)


def test_the_id_of_one_devices_report_is_free_for_every_other(fleet: Fleet) -> None:
    round_id = fleet.operator.open(words=WORDS_PLAN, deltas={})
    first, second, third = fleet.parties(3)
    array = {"w": np.full(4, 0.5, np.float32)}
    assert first.send_words(round_id, "zebra", report_id="same").status_code == 200
    assert second.send_counts(round_id, {1: 1}, report_id="same").status_code == 200
    assert third.send_delta(round_id, array, report_id="same").status_code == 200
    found = fleet.operator.close(round_id)
    assert found["reports"] == {"marginals": 1, "deltas": 1, "words": 1}


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
    members = fleet.join(fleet.parties(3))
    through(members, "unmasking")
    fleet.sums(members)
    found = until(lambda: (now := fleet.round(damaged))["state"] == "abandoned" and now)
    assert found["note"].startswith("kept failing: ValidationError"), found["note"]
