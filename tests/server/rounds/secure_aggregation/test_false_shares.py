"""False shares: a group has its exact sum around them, and who sent them is left out of later ones. Real processes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from device_sdk.secure_aggregation import keys
from device_sdk.secure_aggregation.shares import PRIME, read_share, to_bytes
from tests.server.parties import refusal, until
from tests.server.rounds.secure_aggregation.members import PLAN, Member, through
from tests.server.rounds.secure_aggregation.processes import Fleet


def false_share(share: bytes) -> bytes:
    """One of its eight elements is another."""
    elements = read_share(share)
    elements[3] = (elements[3] + 1) % PRIME
    return to_bytes(elements)


def unmask_with(members: list[Member], liars: list[Member], about: Callable[[str], bool]) -> None:
    """The last stage, in which the liars send a false share of every seed that ``about`` names."""
    for member in members:
        message: Any = member.answer(member.task())
        if member in liars:
            held = zip(member.participant.roster.device_ids, message.shares, strict=True)
            shares = tuple(false_share(share) if about(name) else share for name, share in held)
            message = message.model_copy(update={"shares": shares})
        member.post("unmasking", message).raise_for_status()


def left_out(fleet: Fleet, parties: list[Any]) -> list[str]:
    """Ids of the devices that may not join the next round, which is abandoned."""
    round_id = fleet.operator.open(marginals=PLAN, minimum=2)
    found = []
    for party in parties:
        offered = party.check_in().json()["round"] is not None
        answer = Member(party, round_id, np.zeros(40, np.int64)).join()
        assert offered == (answer.status_code == 200), "what is offered can be joined, and nothing else"
        if answer.status_code != 200:
            assert refusal(answer) == (403, "excluded")
            found.append(party.id)
    fleet.operator.post(f"rounds/{round_id}/abandon")
    return found


@pytest.mark.parametrize("liars", [1, 3])
def test_a_group_has_its_sum_around_false_shares_and_who_sent_them_is_left_out(fleet: Fleet, liars: int) -> None:
    """Nine devices, of which six honest ones are needed. With three liars the sum is as exact, but they could have made
    others look like them: nobody is left out."""
    members = sorted(fleet.join(fleet.parties(9)), key=lambda member: member.party.id)
    through(members, "consistency")
    unmask_with(members, members[:liars], lambda name: True)
    fleet.sums(members)
    certain = members[:1] if liars == 1 else []
    assert left_out(fleet, [member.party for member in members]) == [member.party.id for member in certain]
    (group,) = fleet.round(members[0].round_id)["groups"]
    notes = [f"left out: {each.party.id}: it sent a false share of its own secret" for each in certain]
    assert group["note"] == "".join(notes)
    fleet.goes([member.party for member in members[1:]])


def test_one_false_share_spoils_nothing_and_names_nobody(fleet: Fleet) -> None:
    """Whether the holder sent another share than it was dealt, or was dealt a false one, nobody can tell."""
    members = sorted(fleet.join(fleet.parties(9)), key=lambda member: member.party.id)
    through(members, "consistency")
    unmask_with(members, members[:1], lambda name: name == members[4].party.id)
    fleet.sums(members)
    assert left_out(fleet, [member.party for member in members]) == []


def deal_falsely(dealer: Member, to: list[Member]) -> None:
    """Shares that the dealer's secrets do not belong to, sealed as they should be for these holders."""
    message: Any = dealer.answer(dealer.task())
    roster: Any = dealer.participant.roster
    digest, private = keys.roster_digest(roster), keys.load_private_key(dealer.participant.sharing)
    sealed, receivers, rng = list(message.sealed), roster.sealed_for(dealer.party.id), np.random.default_rng(0)
    for holder in to:
        name, peer = holder.party.id, roster.member(holder.party.id).sharing_key
        key = keys.agreed_key(private, peer, digest, "share", roster.round_id, dealer.party.id, name)
        content = b"".join(to_bytes(rng.integers(0, PRIME, 8)) for _ in range(2))
        sealed[receivers.index(name)] = keys.seal(key, content, roster.round_id, dealer.party.id, name)
    assert dealer.post("shares", message.model_copy(update={"sealed": tuple(sealed)})).status_code == 200


def test_a_holder_that_was_dealt_false_shares_is_not_left_out(fleet: Fleet) -> None:
    """Two dealers that conspire to have an honest device left out: the sum is exact, and the device stays."""
    members = sorted(fleet.join(fleet.parties(9)), key=lambda member: member.party.id)
    for dealer in members[1:3]:
        deal_falsely(dealer, [members[0]])
    through([members[0], *members[3:]], "shares")
    through(members, "unmasking", "masked")
    fleet.sums(members)
    assert left_out(fleet, [member.party for member in members]) == []


def test_a_dealer_whose_shares_belong_to_no_secret_stops_one_group_and_no_second(fleet: Fleet) -> None:
    members = sorted(fleet.join(fleet.parties(9)), key=lambda member: member.party.id)
    hostile = members[0]
    hostile.participant = hostile.participant.model_copy(update={"seed": bytes(16)})
    through(members, "shares")
    through(members, "unmasking", "masked")
    round_id = hostile.round_id
    fleet.operator.close(round_id)
    assert until(lambda: fleet.round(round_id)["state"] == "abandoned")
    (group,) = fleet.round(round_id)["groups"]
    assert group["note"].startswith(f"{hostile.party.id}: shares: ")
    assert left_out(fleet, [member.party for member in members]) == [hostile.party.id]
    fleet.goes([member.party for member in members[1:]])
