"""One device's stages: repeated calls change nothing, and no call gets more out of it than the protocol allows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from device_sdk.errors import PrivacyError, ProtocolError
from device_sdk.secure_aggregation import keys
from device_sdk.secure_aggregation.participant import Participant, agree, mask, reveal, share
from device_sdk.secure_aggregation.shares import Elements, split, to_bytes, uniform
from device_sdk.wire.secure_aggregation import NO_SHARE, STAGES, Roster
from tests.device_sdk.secure_aggregation.parties import advertised, deliveries, masked, resigned, roster_of, shared

COUNT = 6  # threshold 4
ME = "device-000"


class Group:
    """Six devices, all of which dealt shares and sent masked inputs."""

    def __init__(self) -> None:
        self.parties = advertised(COUNT)
        self.names = tuple(self.parties)
        self.roster = roster_of(self.parties)
        self.shared = shared(self.parties, self.roster)
        self.masked = masked(self.shared, {name: np.arange(5, dtype=np.int64) for name in self.names})

    def agreed(self, name: str, survivors: tuple[str, ...]) -> Participant:
        return agree(self.masked[name], self.parties[name].identity, survivors)

    def signatures(self, survivors: tuple[str, ...], *signers: str) -> dict[str, bytes]:
        found = {}
        for name in signers or survivors:
            found[name] = self.agreed(name, survivors).agreed.signature
        return found

    def secrets(self, holder: str) -> dict[str, tuple[bytes, bytes]]:
        """A holder's shares of every other device's mask key and seed, made anew."""
        held = {}
        for dealer in self.names:
            if dealer != holder:
                key, seed = self.masked[dealer].masking, self.masked[dealer].seed
                drawn = {self.roster.point(name): self._drawn(dealer, name) for name in self.roster.drawn_by(dealer)}
                point = self.roster.point(holder)
                if point in drawn:
                    held[dealer] = to_bytes(drawn[point][0]), to_bytes(drawn[point][1])
                else:
                    first, second = ({at: pair[which] for at, pair in drawn.items()} for which in (0, 1))
                    held[dealer] = split(key, first, COUNT)[point], split(seed, second, COUNT)[point]
        return held

    def _drawn(self, dealer: str, holder: str) -> tuple[Elements, Elements]:
        """As the holder draws its shares; the dealer's are compared with them."""
        private = keys.load_private_key(self.masked[holder].sharing)
        stream = keys.agreed_key(
            *(private, self.roster.member(dealer).sharing_key, keys.roster_digest(self.roster), "drawn shares"),
            *(self.roster.round_id, dealer, holder),
            size=128,
        )
        return uniform(stream[:64]), uniform(stream[64:])


def share_in(done: Participant, name: str) -> bytes:
    assert done.revealed is not None and done.roster is not None
    return done.revealed.shares[done.roster.point(name) - 1]


@pytest.fixture(scope="module")
def group() -> Group:
    return Group()


def test_every_stage_again_is_the_same_answer(group: Group) -> None:
    assert share(group.shared[ME], group.roster) == group.shared[ME]
    assert share(group.parties[ME].participant, group.roster) == group.shared[ME], "also where it was never kept"
    repeated = mask(group.masked[ME], deliveries(group.shared, ME), np.full(5, 99, np.int64))
    assert repeated == group.masked[ME], "another vector under the same masks would give away their difference"
    signed = group.agreed(ME, group.names)
    assert agree(signed, group.parties[ME].identity, group.names) == signed
    done = reveal(signed, group.signatures(group.names))
    assert reveal(done, {}) == done
    assert Participant.model_validate_json(done.model_dump_json()) == done, "it survives the disk"


def test_what_travels_is_read_as_it_was(group: Group) -> None:
    done = reveal(group.agreed(ME, group.names[:-1]), group.signatures(group.names[:-1]))
    messages = done.advertised, done.dealt, done.masked, done.agreed, done.revealed
    sizes = [228, 2 * 50, 5 * 4, 64, COUNT * 17]
    for message, stage, size in zip(messages, STAGES, sizes, strict=True):
        assert message is not None and (message.stage, len(message.body)) == (stage, size)
        assert type(message).read(message.body, ME, message.round_id) == message
        for body in (message.body[:-1], message.body + b"x"):
            if stage != "masked":  # whose length only the roster says
                with pytest.raises(ProtocolError, match=f"the message has {len(body)} bytes"):
                    type(message).read(body, ME, message.round_id)
        with pytest.raises(ProtocolError, match="device_id: "):
            type(message).read(message.body, "no id", message.round_id)


def test_contradictions_are_refused(group: Group) -> None:
    other = roster_of({name: party for name, party in group.parties.items() if name != "device-005"})
    with pytest.raises(PrivacyError, match="roster: differs"):
        share(group.shared[ME], other)
    fewer = deliveries(group.shared, ME)
    fewer.pop("device-005")
    with pytest.raises(PrivacyError, match="deliveries: differs"):
        mask(group.masked[ME], fewer, np.zeros(5, np.int64))
    with pytest.raises(PrivacyError, match="survivors: differs"):
        agree(group.agreed(ME, group.names), group.parties[ME].identity, group.names[:-1])


def test_never_both_secrets_of_one_device(group: Group) -> None:
    """A server that first names a device a survivor and then a drop-out, or the other way round, gets one share."""
    everyone, without = group.names, group.names[:-1]
    for first, second in ((everyone, without), (without, everyone)):
        signed = group.agreed(ME, first)
        with pytest.raises(PrivacyError, match="survivors: differs"):
            agree(signed, group.parties[ME].identity, second)
        with pytest.raises((PrivacyError, ProtocolError)):  # the others' signatures over the other list
            reveal(signed, group.signatures(second))
        done = reveal(signed, group.signatures(first))
        for name, (key, seed) in group.secrets(ME).items():
            assert share_in(done, name) == (seed if name in first else key)
        assert reveal(done, group.signatures(second)) == done, "a second request gets the first answer"
        with pytest.raises(PrivacyError, match="survivors: differs"):
            agree(done, group.parties[ME].identity, second)


def test_different_survivors_for_different_devices_reveal_nothing(group: Group) -> None:
    everyone, without = group.names, group.names[:-1]
    with pytest.raises(PrivacyError, match="devices were shown different survivors"):
        reveal(group.agreed(ME, without), group.signatures(everyone, *without))


def test_fewer_than_the_threshold_get_nothing(group: Group) -> None:
    with pytest.raises(PrivacyError, match="deliveries: found 3 of 6 devices, expected at least 4"):
        mask(group.shared[ME], dict(list(deliveries(group.shared, ME).items())[:2]), np.zeros(5, np.int64))
    with pytest.raises(PrivacyError, match="survivors: found 3"):
        group.agreed(ME, group.names[:3])
    with pytest.raises(PrivacyError, match="signatures: found 3"):
        reveal(group.agreed(ME, group.names), group.signatures(group.names, *group.names[:3]))
    # Its own signature is on the list as soon as it was given.
    assert reveal(group.agreed(ME, group.names), group.signatures(group.names, *group.names[1:4])).revealed


def test_the_devices_minimum_holds_beside_two_thirds() -> None:
    parties = advertised(6, minimum=6)
    roster = roster_of(parties)
    assert roster.threshold == 6
    with pytest.raises(PrivacyError, match="minimum: found 3, expected at least 6"):
        share(parties[ME].participant, roster_of(parties, minimum=3))
    participants = shared(parties, roster)
    few = deliveries(participants, ME)
    few.pop("device-005")
    with pytest.raises(PrivacyError, match="found 5 of 6 devices, expected at least 6"):
        mask(participants[ME], few, np.zeros(5, np.int64))


def _with(group: Group, **changes: Any) -> Roster:
    return group.roster.model_copy(update=changes)


def _swapped(group: Group, member: Any) -> tuple[Any, ...]:
    """The roster's members with another second one."""
    first, _, *others = group.roster.members
    return (first, member, *others)


def _claiming(group: Group, **changes: Any) -> Roster:
    """The roster with ``device-001`` as another would have it."""
    return _with(group, members=_swapped(group, group.roster.members[1].model_copy(update=changes)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: _with(g, round_id="r2"), "round_id: found r2"),
        (lambda g: _with(g, words=6), "words: found 6, expected 5"),
        (lambda g: _with(g, members=g.roster.members[1:]), "own keys"),
        (lambda g: _claiming(g, masking_key=bytes([9] * 32)), "device-001: signature"),
        (lambda g: _claiming(g, identity_key=bytes(32)), "device-001: signature"),
        (lambda g: _with(g, members=(resigned(g.parties[ME], seed_commitment=bytes(32)), *g.roster.members[1:])),
         "own keys"),
        (lambda g: _with(g, members=_swapped(g, resigned(g.parties["device-001"], sharing_key=bytes(32)))),
         "small order"),
    ],
)  # fmt: skip
def test_false_rosters_are_refused(group: Group, change: Callable[[Group], Roster], message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        share(group.parties[ME].participant, change(group))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: {"members": (*g.roster.members, resigned(g.parties["device-001"], device_id="device-009"))},
         "the same identity_key twice"),
        (lambda g: {"members": tuple(reversed(g.roster.members))}, "every device once, sorted"),
        (lambda g: {"members": _swapped(g, resigned(g.parties["device-001"], subject="e" * 64))},
         "different things"),
        (lambda g: {"round_id": "r2"}, "keys for another round"),
        (lambda g: {"minimum": 7}, "expected at least minimum = 7"),
    ],
)  # fmt: skip
def test_what_is_no_roster(group: Group, change: Callable[[Group], dict[str, Any]], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        roster_of(group.parties, **change(group))


@pytest.mark.parametrize(
    "act",
    [
        lambda g: mask(g.shared[ME], deliveries(g.shared, ME) | {"stranger": bytes(50)}, np.zeros(5, np.int64)),
        lambda g: g.agreed(ME, (*g.names, "stranger")),
        lambda g: g.agreed(ME, g.names[1:]),
        lambda g: g.agreed(ME, tuple(reversed(g.names))),
        lambda g: g.agreed(ME, (*g.names, g.names[-1])),
        lambda g: reveal(g.agreed(ME, g.names[:-1]), {"device-005": bytes(64)}),
        lambda g: mask(g.parties[ME].participant, {}, np.zeros(5, np.int64)),
        lambda g: agree(g.shared[ME], g.parties[ME].identity, g.names),
        lambda g: agree(g.parties[ME].participant, g.parties[ME].identity, g.names),
        lambda g: reveal(g.masked[ME], {}),
    ],
)
def test_what_does_not_belong_or_comes_out_of_turn_is_refused(group: Group, act: Callable[[Group], object]) -> None:
    with pytest.raises(ProtocolError):
        act(group)


def test_shares_that_cannot_be_read_are_left_out(group: Group) -> None:
    """A damaged delivery, and one that was meant for another device: neither stops the others'."""
    dealt, damaged_one = deliveries(group.shared, ME), "device-001"
    assert [name for name, sealed in dealt.items() if sealed] == [damaged_one, "device-002"]
    damaged = bytearray(dealt[damaged_one])
    damaged[20] ^= 1
    dealt[damaged_one] = bytes(damaged)
    dealt["device-002"] = group.shared["device-002"].dealt.sealed[1]
    mine = agree(mask(group.shared[ME], dealt, np.zeros(5, np.int64)), group.parties[ME].identity, group.names)
    done = reveal(mine, group.signatures(group.names))
    left_out = {name for name in group.names if share_in(done, name) == NO_SHARE}
    assert left_out == {damaged_one, "device-002"}


def test_what_is_sealed_well_and_is_no_share_is_left_out(group: Group) -> None:
    """A hostile dealer's: whoever passed it on would have its own message refused, and the group would fail."""
    dealer, digest = "device-001", keys.roster_digest(group.roster)
    private = keys.load_private_key(group.shared[dealer].sharing)
    peer = group.roster.member(ME).sharing_key
    key = keys.agreed_key(private, peer, digest, "share", group.roster.round_id, dealer, ME)
    dealt = deliveries(group.shared, ME)
    dealt[dealer] = keys.seal(key, bytes(17) + b"\xfe" * 17, group.roster.round_id, dealer, ME)
    mine = agree(mask(group.shared[ME], dealt, np.zeros(5, np.int64)), group.parties[ME].identity, group.names)
    done = reveal(mine, group.signatures(group.names))
    assert {name for name in group.names if share_in(done, name) == NO_SHARE} == {dealer}


def test_a_signature_of_keys_is_of_all_of_them(group: Group) -> None:
    message = group.parties[ME].participant.advertised
    assert keys.signed_by(message.identity_key, message.signature, keys.advertised_bytes(message))
    changes = dict.fromkeys(("sharing_key", "masking_key", "seed_commitment", "identity_key"), bytes([7] * 32))
    for field, value in {**changes, "round_id": "other", "device_id": "other", "subject": "other", "words": 6}.items():
        other = message.model_copy(update={field: value})
        assert not keys.signed_by(message.identity_key, message.signature, keys.advertised_bytes(other))
    assert not keys.signed_by(bytes(32), message.signature, keys.advertised_bytes(message))
    assert not keys.signed_by(message.identity_key, b"", keys.advertised_bytes(message))


def test_two_devices_never_have_the_same_keys() -> None:
    first, second = (advertised(1)[ME].participant.advertised for _ in range(2))
    for field in ("sharing_key", "masking_key", "seed_commitment"):
        assert getattr(first, field) != getattr(second, field)
