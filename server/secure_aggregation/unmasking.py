"""The sum of a group: masked vectors added up, and what does not cancel taken off again.

A survivor's own mask comes from its seed. A device that dealt shares and then dropped out left its pairs' masks in the
survivors' vectors: those come from its mask key. Either secret is put together from the survivors' shares and compared
with what its device had announced, so a wrong share ends in an error and never in a wrong sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError
from device_sdk.secure_aggregation import keys, masks
from device_sdk.secure_aggregation.shares import recover
from device_sdk.wire.secure_aggregation import RevealedShares, Roster

__all__ = ["unmask"]


def unmask(
    roster: Roster, dealers: Set[str], masked: Mapping[str, bytes], revealed: Sequence[RevealedShares]
) -> NDArray[np.int64]:
    """The sum of the survivors' vectors, int64 [words].

    dealers: whose shares the others hold. masked: the survivors' vectors, by device. ProtocolError: fewer than the
    threshold in any part, a vector of another length, or shares that do not give what its device announced.
    """
    if len(masked) < roster.threshold:
        raise ProtocolError(f"masked: found {len(masked)} vectors, expected at least {roster.threshold}")
    digest = keys.roster_digest(roster)
    total = sum((masks.read_words(content, roster) for content in masked.values()), start=_zeros(roster))
    for name in sorted(masked):
        shares = {roster.point(each.device_id): each.seeds[name] for each in revealed if name in each.seeds}
        seed = _recovered(name, shares, roster, keys.commitment, roster.member(name).seed_commitment)
        total -= masks.own_mask(seed, name, roster, digest)
    for name in sorted(dealers - masked.keys()):
        shares = {roster.point(each.device_id): each.mask_keys[name] for each in revealed if name in each.mask_keys}
        secret = _recovered(name, shares, roster, keys.public_key, roster.member(name).masking_key)
        private = keys.load_private_key(secret)
        for survivor in masked:  # what the dropped device would have added cancels what its peer did
            total += masks.pair_mask(private, name, survivor, roster, digest)
    return masks.signed(total)


def _recovered(
    name: str, shares: dict[int, bytes], roster: Roster, announce: Callable[[bytes], bytes], announced: bytes
) -> bytes:
    try:
        secret = recover(shares, roster.threshold)
    except ProtocolError as error:
        raise ProtocolError(f"{name}: {error}") from error
    if announce(secret) != announced:
        raise ProtocolError(f"{name}: shares: they give another secret than it announced; at least one is false")
    return secret


def _zeros(roster: Roster) -> masks.Words:
    return masks.to_words(np.zeros(roster.words, np.int64), roster)
