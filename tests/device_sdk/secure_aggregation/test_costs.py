"""What a masked delta costs a device: bytes, and seconds of a core."""

import time

import numpy as np
import pytest

from device_sdk.privacy.quantised import quantised, word_bits
from device_sdk.secure_aggregation import keys
from device_sdk.secure_aggregation.participant import agree, mask, reveal, share
from device_sdk.wire.messages import DeltaPlan
from tests.device_sdk.secure_aggregation.parties import ROUND, advertised, deliveries, roster_of

PLAN = DeltaPlan(trust="distributed", minimum_survivors=34, noise_stddev=0.75)
KEPT = 1_942
"""Bytes of keys, shares and a signature in a group of 50, however large the delta is."""


@pytest.mark.parametrize("values", [1024, 65_536, pytest.param(1 << 20, marks=pytest.mark.slow)])
def test_bytes_and_seconds_in_a_group_of_fifty(values: int) -> None:
    parties = advertised(50, words=values, minimum=34)
    roster = roster_of(parties, word_bits=word_bits(PLAN, 50, values))
    own, *others = parties
    dealt = {name: share(parties[name].participant, roster) for name in others}
    delta = {"w": np.random.default_rng(0).normal(size=values).astype(np.float32)}
    content = keys.survivor_bytes(ROUND, keys.roster_digest(roster), roster.device_ids)
    signatures = {name: party.identity.sign(content) for name, party in parties.items()}
    begun = time.process_time()
    device = share(parties[own].participant, roster)
    device = mask(device, deliveries(dealt, own), quantised(delta, PLAN, ROUND))
    device = reveal(agree(device, parties[own].identity, roster.device_ids), signatures)
    seconds = time.process_time() - begun
    sent = [len(message.body) for message in (device.advertised, device.dealt, device.agreed, device.revealed)]
    masked = len(device.masked.body)
    print(f"{values} values: {masked} bytes masked, {sum(sent)} besides, {seconds:.3f} s")
    assert sum(sent) == KEPT and masked + sum(sent) <= 2.2 * 2 * values
    assert seconds <= 1.0
