"""The sum of a group: masked vectors added up, and what does not cancel taken off again.

A survivor's own mask comes from its seed. A device that dealt shares and then dropped out left its pairs' masks in the
survivors' vectors: those come from its mask key. Either secret is put together from the survivors' shares, around those
that are false (:mod:`server.rounds.secure_aggregation.decoding`), and compared with what its device had announced: a
wrong share never ends in a wrong sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import ProtocolError
from device_sdk.secure_aggregation import keys, masks
from device_sdk.wire.secure_aggregation import RevealedShares, Roster
from server.rounds.secure_aggregation.decoding import Budget, decode

__all__ = ["Recovered", "recover_secrets", "sum_of", "unmask"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """secrets: of the survivors their seeds, of the dealers that dropped out their mask keys. disputes: (dealer,
    holder) where what the holder sent, or did not send, is not of the dealer's secret: one of the two is to blame.
    lost: why other secrets were not found, by dealer. revealing: how many devices sent shares."""

    secrets: Mapping[str, bytes]
    disputes: frozenset[tuple[str, str]]
    lost: Mapping[str, str]
    revealing: int


def unmask(
    roster: Roster, dealers: Set[str], masked: Mapping[str, bytes], revealed: Sequence[RevealedShares]
) -> NDArray[np.int64]:
    """The sum of the survivors' vectors, int64 [words].

    dealers: whose shares the others hold. masked: the survivors' vectors, by device. ProtocolError: fewer than the
    threshold in any part, a vector of another length, or shares that do not give what its device announced.
    """
    if len(masked) < roster.threshold:
        raise ProtocolError(f"masked: found {len(masked)} vectors, expected at least {roster.threshold}")
    return sum_of(roster, dealers, masked, recover_secrets(roster, dealers, masked.keys(), revealed))


def recover_secrets(
    roster: Roster, dealers: Set[str], survivors: Set[str], revealed: Sequence[RevealedShares]
) -> Recovered:
    """Every secret that the sum needs, as far as the shares give them."""
    names = {each.device_id: roster.point(each.device_id) for each in revealed}
    holders = {point: name for name, point in names.items()}
    shares: dict[str, dict[int, bytes]] = {}
    for dealer in sorted(survivors | dealers):
        sent = ((each.device_id, each.seeds if dealer in survivors else each.mask_keys) for each in revealed)
        shares[dealer] = {names[holder]: held[dealer] for holder, held in sent if dealer in held}
    disputes = {(dealer, name) for dealer, held in shares.items() for name in names if names[name] not in held}
    secrets: dict[str, bytes] = {}
    doubted: set[int] = set()
    budget = Budget()
    waiting = [dealer for dealer, held in shares.items() if len(held) >= roster.threshold]
    while waiting:  # whoever lied about one secret is asked last about others: that may be enough for those not found
        known, left = len(doubted), []
        for dealer in waiting:
            found = decode(shares[dealer], roster.threshold, _Announced(roster, dealer, survivors), doubted, budget)
            if found is None:
                left.append(dealer)
                continue
            secrets[dealer] = found.secret
            doubted |= found.false
            disputes |= {(dealer, holders[point]) for point in found.false}
        waiting = left if len(doubted) > known else []
    lost = {dealer: _lost(held, roster) for dealer, held in shares.items() if dealer not in secrets}
    return Recovered(secrets, frozenset(disputes), lost, len(revealed))


def sum_of(roster: Roster, dealers: Set[str], masked: Mapping[str, bytes], recovered: Recovered) -> NDArray[np.int64]:
    """The sum of the survivors' vectors, int64 [words]. ProtocolError: a secret of it was not found."""
    for name, reason in recovered.lost.items():
        raise ProtocolError(f"{name}: {reason}")
    digest = keys.roster_digest(roster)
    total = sum((masks.read_words(content, roster) for content in masked.values()), start=_zeros(roster))
    for name in sorted(masked):
        total -= masks.own_mask(recovered.secrets[name], name, roster, digest)
    for name in sorted(dealers - masked.keys()):
        private = keys.load_private_key(recovered.secrets[name])
        for survivor in masked:  # what the dropped device would have added cancels what its peer did
            total += masks.pair_mask(private, name, survivor, roster, digest)
    return masks.signed(total)


@dataclass(frozen=True, slots=True)
class _Announced:
    """Whether a secret is the one that its dealer announced: of a survivor its seed, of another its mask key."""

    roster: Roster
    dealer: str
    survivors: Set[str]

    def __call__(self, secret: bytes) -> bool:
        member = self.roster.member(self.dealer)
        if self.dealer in self.survivors:
            return keys.commitment(secret) == member.seed_commitment
        return keys.public_key(secret) == member.masking_key


def _lost(held: Mapping[int, bytes], roster: Roster) -> str:
    if len(held) < roster.threshold:
        return f"shares: found {len(held)}, expected at least {roster.threshold}"
    return f"shares: they do not give what it announced; too many of {len(held)} are false, or all were dealt so"


def _zeros(roster: Roster) -> masks.Words:
    return masks.to_words(np.zeros(roster.words, np.int64), roster)
