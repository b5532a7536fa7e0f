"""Masks cancel in the sum, are uniform, and belong to one round, roster and pair."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import PrivacyError, ProtocolError
from device_sdk.secure_aggregation import keys, masks
from device_sdk.wire.secure_aggregation import Roster
from tests.device_sdk.secure_aggregation.parties import Party, advertised, roster_of

PARTIES = advertised(4)
ROSTER = roster_of(PARTIES)


def pair_mask(party: Party, peer: str, roster: Roster) -> masks.Words:
    private = keys.load_private_key(keys.mask_key(party.participant.masking))
    return masks.pair_mask(private, party.id, peer, roster, keys.roster_digest(roster))


@pytest.mark.parametrize("word_bits", [32, 64])
def test_the_masks_of_a_pair_cancel(word_bits: int) -> None:
    roster = roster_of(PARTIES, word_bits=word_bits)
    for first in PARTIES:
        for second in PARTIES.keys() - {first}:
            there, back = pair_mask(PARTIES[first], second, roster), pair_mask(PARTIES[second], first, roster)
            assert there.dtype == np.dtype(f"u{word_bits // 8}") and there.any() and not (there + back).any()


def test_another_round_roster_pair_or_minimum_is_another_mask() -> None:
    """With the very same keys: every word of the mask differs but for chance."""
    base = pair_mask(PARTIES["device-000"], "device-001", ROSTER)
    fewer = {name: party for name, party in PARTIES.items() if name != "device-003"}
    members = [member.model_copy(update={"round_id": "r2"}) for member in ROSTER.members]
    others = {
        "round": pair_mask(PARTIES["device-000"], "device-001", roster_of(PARTIES, round_id="r2", members=members)),
        "roster": pair_mask(PARTIES["device-000"], "device-001", roster_of(fewer)),
        "minimum": pair_mask(PARTIES["device-000"], "device-001", roster_of(PARTIES, minimum=3)),
        "pair": pair_mask(PARTIES["device-000"], "device-002", ROSTER),
    }
    for name, other in others.items():
        assert not (base == other).any(), name
    own = [
        masks.own_mask(bytes(32), "device-000", roster, keys.roster_digest(roster))
        for roster in (ROSTER, roster_of(fewer), roster_of(PARTIES, round_id="r2", members=members))
    ]
    own.append(masks.own_mask(bytes(32), "device-001", ROSTER, keys.roster_digest(ROSTER)))
    assert len({mask.tobytes() for mask in own}) == len(own)


def test_the_keystream_is_aes_in_counter_mode() -> None:
    """Against the block cipher applied to the counters 0, 1, 2."""
    key = bytes(range(32))
    roster = roster_of(advertised(4, words=10))
    counters = b"".join(index.to_bytes(16, "big") for index in range(3))
    expected = Cipher(AES256(key), ECB()).encryptor().update(counters)
    assert masks.keystream(key, roster).tobytes() == expected[:40]


def test_words_are_uniform() -> None:
    """Chi-square over 256 classes of the high and of the low bytes of 100,000 words."""
    words = masks.keystream(os.urandom(32), roster_of(advertised(4, words=100_000)))
    for shift in (0, 8, 16, 24):
        found = np.bincount((words >> shift).astype(np.uint8), minlength=256)
        assert np.square(found - words.size / 256).sum() / (words.size / 256) < 400  # 255 degrees: p = 1e-8


@given(st.integers(8, 64), st.data())
@settings(max_examples=100)
def test_signed_numbers_pass_through_words_and_bytes(word_bits: int, data: st.DataObject) -> None:
    most = (1 << (word_bits - 1)) // 3 - 1
    values = data.draw(st.lists(st.integers(-most, most), min_size=5, max_size=5))
    roster = roster_of(PARTIES, word_bits=word_bits)
    vector = np.array(values, np.int64)
    words = masks.to_words(vector, roster)
    assert (masks.signed(words, roster) == vector).all()
    assert (masks.signed(words + words + words, roster) == 3 * vector).all()
    packed = masks.pack(words, roster)
    assert len(packed) == -(-5 * word_bits // 8)
    assert (masks.signed(masks.read_words(packed, roster), roster) == vector).all()


@pytest.mark.parametrize("word_bits", [8, 20, 31, 33])
def test_sums_are_modulo_two_to_the_bits_alone(word_bits: int) -> None:
    """What is above the bits of a word, from masks or from carries, decides nothing and is not sent."""
    roster = roster_of(PARTIES, word_bits=word_bits)
    vector = np.array([1, -1, 2 ** (word_bits - 1) - 1, 7, 0], np.int64)
    mask = masks.keystream(os.urandom(32), roster)
    sent = masks.read_words(masks.pack(masks.to_words(vector, roster) + mask, roster), roster)
    assert int(sent.max()) < 2**word_bits
    assert (masks.signed(sent - mask, roster) == vector).all()
    twice = masks.signed(sent - mask + masks.to_words(vector, roster), roster)
    assert twice.tolist() == [2, -2, -2, 14, 0], "it wraps around"


@pytest.mark.parametrize("word_bits", [32, 64])
def test_what_a_sum_cannot_hold_is_refused(word_bits: int) -> None:
    roster = roster_of(PARTIES, word_bits=word_bits)
    most = masks.capacity(roster)
    masks.check_capacity(np.full(5, -most, np.int64), roster)
    for value in (most + 1, -most - 1, -(2**63)):
        vector = np.zeros(5, np.int64)
        vector[2] = value
        with pytest.raises(PrivacyError, match="use wider words"):
            masks.check_capacity(vector, roster)


def test_vectors_of_another_shape_are_refused() -> None:
    for vector in (np.zeros(4, np.int64), np.zeros((5, 1), np.int64), np.zeros(5, np.int32)):
        with pytest.raises(ProtocolError, match=r"expected int64 \[5\]"):
            masks.to_words(vector, ROSTER)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="found 19 bytes, expected 20"):
        masks.read_words(bytes(19), ROSTER)
