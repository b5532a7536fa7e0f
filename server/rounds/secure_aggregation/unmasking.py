"""The sum of a group: masked vectors added up, and what does not cancel taken off again.

A survivor's own mask comes from its seed. A device that dealt shares and then dropped out left its pairs' masks in the
survivors' vectors: those come from its mask key. Either secret is put together from the survivors' shares, around those
that are false (:func:`decode`), and compared with what its device had announced: a
wrong share never ends in a wrong sum.

The shares of a secret are a code word of Reed and Solomon's code, one symbol a holder, and what its dealer announced
tells the true secret from every other. So a secret is found by the first of these that gives it:

1. the shares of ``threshold`` holders, those first who told nothing false so far;
2. the error locator that all elements of the shares have in common (Peterson's equations of all of them at once): up to
   half of the shares beyond the threshold may be false whatever they are, and eight ninths of them where liars do not
   agree on what they send;
3. one choice of holders after the other, as far as the ``WORK`` for a group goes: in groups of up to fifteen those are
   all that there are, so that any ``threshold`` true shares do.

What lies beyond ends in no secret, and never in a false one. All of it is bounded, whatever was sent.

Liars who agree can make another code word with the same secret, on which honest shares are not: with two of them at
points that are asked first, and as many as those shares are. So a share is called false only where it is the only one
of a whole group's: for that, more devices than a group can lose would have to lie alike.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, func, insert, select

from device_sdk.errors import ProtocolError
from device_sdk.privacy.contributions import l1_sensitivity, share_variance, weight_units
from device_sdk.privacy.quantised import WRAPS, clip_steps, largest_sum
from device_sdk.secure_aggregation import keys, masks
from device_sdk.secure_aggregation.shares import PRIME, interpolation, inverse, powers, products, read_share
from device_sdk.wire.messages import FIXED_POINT, DeltaPlan, MarginalPlan
from device_sdk.wire.secure_aggregation import NO_SHARE, RevealedShares, Roster
from server.storage.schema import exclusions


@dataclass(frozen=True, slots=True)
class Recovered:
    """secrets: seeds, of the survivors' own masks and of the mask keys of dealers that dropped out. disputes: (dealer,
    holder) where what the holder sent, or did not send, is not of the dealer's secret: one of the two is to blame.
    lost: why other secrets were not found, by dealer. revealing: which devices sent shares."""

    secrets: Mapping[str, bytes]
    disputes: frozenset[tuple[str, str]]
    lost: Mapping[str, str]
    revealing: frozenset[str]


def recover_secrets(
    roster: Roster, dealers: Set[str], survivors: Set[str], revealed: Sequence[RevealedShares]
) -> Recovered:
    """Every secret that the sum needs, as far as the shares give them. dealers: whose shares the others hold."""
    names = {each.device_id: roster.point(each.device_id) for each in revealed}
    holders = {point: name for name, point in names.items()}
    shares: dict[str, dict[int, bytes]] = {}
    for dealer in sorted(survivors | dealers):
        at = roster.point(dealer) - 1
        held = {names[each.device_id]: each.shares[at] for each in revealed}
        shares[dealer] = {point: share for point, share in held.items() if share != NO_SHARE}
    disputes = {(dealer, name) for dealer, held in shares.items() for name in names if names[name] not in held}

    def announced(dealer: str) -> Callable[[bytes], bool]:
        """Whether a secret is the one that its dealer announced: of a survivor its seed, of another its mask key."""
        member = roster.member(dealer)
        if dealer in survivors:
            return lambda secret: keys.commitment(secret) == member.seed_commitment
        return lambda secret: keys.public_key(keys.mask_key(secret)) == member.masking_key

    secrets: dict[str, bytes] = {}
    doubted: set[int] = set()
    budget = Budget()
    waiting = [dealer for dealer, held in shares.items() if len(held) >= roster.threshold]
    while waiting:  # whoever lied about one secret is asked last about others: that may be enough for those not found
        known, left = len(doubted), []
        for dealer in waiting:
            found = decode(shares[dealer], roster.threshold, announced(dealer), doubted, budget)
            if found is None:
                left.append(dealer)
                continue
            secrets[dealer] = found.secret
            doubted |= found.false
            if len(found.false) == 1 and len(shares[dealer]) == len(roster.members):
                disputes |= {(dealer, holders[point]) for point in found.false}
        waiting = left if len(doubted) > known else []
    lost = {dealer: _lost(held, roster) for dealer, held in shares.items() if dealer not in secrets}
    return Recovered(secrets, frozenset(disputes), lost, frozenset(names))


def sum_of(roster: Roster, dealers: Set[str], masked: Mapping[str, bytes], recovered: Recovered) -> NDArray[np.int64]:
    """The sum of the survivors' vectors, int64 [words]. masked: these, by device. ProtocolError: a secret of it was not
    found, or a vector has another length."""
    for name, reason in recovered.lost.items():
        raise ProtocolError(f"{name}: {reason}")
    digest = keys.roster_digest(roster)
    start = masks.to_words(np.zeros(roster.words, np.int64), roster)
    total = sum((masks.read_words(content, roster) for content in masked.values()), start=start)
    for name in sorted(masked):
        total -= masks.own_mask(recovered.secrets[name], name, roster, digest)
    for name in sorted(dealers - masked.keys()):
        private = keys.load_private_key(keys.mask_key(recovered.secrets[name]))
        for survivor in masked:  # what the dropped device would have added cancels what its peer did
            total += masks.pair_mask(private, name, survivor, roster, digest)
    return masks.signed(total, roster)


def check_counts(total: NDArray[np.int64], plan: MarginalPlan, devices: int) -> None:
    """All that can be checked of bounded counts that nobody sees. ProtocolError: a word has been said more often in the
    sum, int64 [words], less often than never, or all words together more often, than so many devices have it whose
    counts and noise are as the plan says."""
    deviation = math.sqrt(devices * share_variance(plan))
    for what, found, most in (
        ("a word was said", total.max(), devices * weight_units(plan) + deviation * _tail(2 * total.size)),
        ("a word was not said", -total.min(), deviation * _tail(2 * total.size)),
        ("words were said", total.sum(), devices * l1_sensitivity(plan) + deviation * math.sqrt(total.size) * _tail(1)),
    ):
        if found > most:
            times = f"found {found / FIXED_POINT:.4g} times, expected at most {most / FIXED_POINT:.4g}"
            raise ProtocolError(f"sum: {what}, {times} of {devices} devices that bound what they add")


def _tail(values: int) -> float:
    """Deviations that the largest of so many Gaussian values passes with a chance of :data:`WRAPS` at most."""
    return math.sqrt(2 * math.log(values / WRAPS))


def check_sum(total: NDArray[np.int64], plan: DeltaPlan, devices: int) -> None:
    """All that can be checked of deltas that nobody sees. ProtocolError: a sum, int64 [words], longer than so many
    devices make it that clip and noise as the plan says."""
    found, most = float(np.linalg.norm(total.astype(np.float64))), largest_sum(plan, devices, total.size)
    if found > most:
        steps, who = clip_steps(plan), f"{devices} devices that clip what they add"
        norms = f"found {found / steps:.4g} clip norms, expected at most {most / steps:.4g} of {who}"
        raise ProtocolError(f"sum: {norms}; at least one does not")


def _lost(held: Mapping[int, bytes], roster: Roster) -> str:
    if len(held) < roster.threshold:
        return f"shares: found {len(held)}, expected at least {roster.threshold}"
    return f"shares: they do not give what it announced; too many of {len(held)} are false, or all were dealt so"


WORK = 1_500_000
"""What the choices of holders that are tried for one group may cost, over all its secrets: each the square of their
number and a hundred. A second or two."""
Elements = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Decoded:
    """secret: as it was dealt. false: points whose shares are not on the polynomials that it was found by; none where
    they are more than half of those beyond the threshold, so that others may be as near."""

    secret: bytes
    false: frozenset[int]


@dataclass(slots=True)
class Budget:
    """What is left of the work that a group may cost."""

    work: int = WORK


def decode(
    shares: Mapping[int, bytes],
    threshold: int,
    is_announced: Callable[[bytes], bool],
    doubted: Set[int],
    budget: Budget,
) -> Decoded | None:
    """The secret that was announced, or None where it is not found. shares: by point, ``threshold`` or more of the
    field's elements. doubted: points whose shares of other secrets were false."""
    held = np.array(sorted(shares, key=lambda point: (point in doubted, point)), np.int64)
    values = np.stack([read_share(shares[int(point)]) for point in held])
    for chosen in _choices(held, values, threshold, sum(int(point) not in doubted for point in held), budget):
        constants = interpolation(np.zeros(1, np.int64), held[chosen]) @ values[chosen] % PRIME
        if constants.max() >= PRIME - 1:  # 65536 is no two bytes
            continue
        secret = constants[0].astype("<u2").tobytes()
        if is_announced(secret):
            others = np.setdiff1d(np.arange(len(held)), chosen)
            on_them = (interpolation(held[others], held[chosen]) @ values[chosen] % PRIME == values[others]).all(axis=1)
            false = held[others[~on_them]].tolist()
            return Decoded(secret, frozenset(false if 2 * len(false) <= len(others) else ()))
    return None


def _choices(
    points: Elements, values: Elements, threshold: int, believed: int, budget: Budget
) -> Iterator[NDArray[np.intp]]:
    """Indices of ``threshold`` shares that may all be true, the likeliest first. believed: how many of the first ones
    nothing speaks against."""
    yield np.arange(threshold)
    for size in sorted({max(threshold, believed), len(points)}):
        for false in _located(points[:size], values[:size], threshold):
            left = np.setdiff1d(np.arange(size), false)
            if len(left) >= threshold:
                yield left[:threshold]
    for chosen in combinations(range(len(points)), threshold):
        budget.work -= threshold * threshold + 100
        if budget.work < 0:
            return
        yield np.array(chosen)


def _located(points: Elements, values: Elements, threshold: int) -> Iterator[NDArray[np.intp]]:
    """Indices of the shares that are false, for different numbers of them that may be."""
    spare = len(points) - threshold
    if spare < 2:
        return
    checks = powers(points, spare).T * inverse(products(points[:, None] - points))
    syndromes = checks % PRIME @ values % PRIME  # [spare, elements], zero where all shares are true
    for most in sorted({spare // 2, spare * values.shape[1] // (values.shape[1] + 1), spare - 1}):
        rows = np.arange(spare - most)[:, None] + np.arange(most + 1)  # neighbours that a locator's coefficients weigh
        locators = _null_space(syndromes[rows].transpose(2, 0, 1).reshape(-1, most + 1))
        if len(locators):
            yield np.flatnonzero(~(powers(points, most + 1) @ locators.T % PRIME).any(axis=1))


def _null_space(matrix: Elements) -> Elements:
    """A basis of what a matrix takes to zero: int64 [vectors, columns]."""
    left, columns = matrix.copy(), matrix.shape[1]
    pivots: list[int] = []
    for column in range(columns):
        found = np.flatnonzero(left[len(pivots) :, column])
        if not len(found):
            continue
        row = len(pivots)
        left[[row, row + found[0]]] = left[[row + found[0], row]]
        left[row] = left[row] * inverse(left[row, column]) % PRIME
        factors = left[:, column].copy()
        factors[row] = 0
        left = (left - factors[:, None] * left[row]) % PRIME
        pivots.append(column)
        if len(pivots) == len(left):
            break
    free = [column for column in range(columns) if column not in pivots]
    basis = np.zeros((len(free), columns), np.int64)
    for number, column in enumerate(free):
        basis[number, column] = 1
        basis[number, pivots] = -left[: len(pivots), column] % PRIME
    return basis


DISPUTED_SECONDS = 30 * 86_400.0
LOST_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """seconds: how long a device is left out. reason: why, for operators."""

    seconds: float
    reason: str


def excluded_by(roster: Roster, recovered: Recovered) -> Mapping[str, Exclusion]:
    """Whom the evidence of one group's shares leaves out, by device.

    A share that is not on its dealer's polynomials was falsified by its holder, or dealt so: the two are in dispute,
    and which of them is to blame nobody can see. A share of its own secret is a device's own. So there are three
    grounds:

    - **false about itself**: 30 days.
    - **in dispute with many**: with more of a group's devices than it can lose (n - t of n, for threshold t), as holder
      or as dealer. Each of an honest device's disputes is with a hostile one, so that many would have to conspire. 30
      days.
    - **a secret that is not there**: its shares do not give what the device announced, which ended the group. Of all
      who took part it alone can do this by itself; together, holders can whose shares are more than half of those
      beyond the threshold. It is held against a device only where at least half of the shares that a group can lose had
      come in beyond the threshold, or where it sent none itself, and for one day: long enough that nobody stops group
      after group.

    Fewer disputes are held against nobody. They did not keep the group from its sum, and an honest device may be one
    end."""
    spare = len(roster.members) - roster.threshold
    others: defaultdict[str, set[str]] = defaultdict(set)
    found: dict[str, Exclusion] = {}
    for name in recovered.lost:
        if 2 * (len(recovered.revealing) - roster.threshold) >= spare > 0 or name not in recovered.revealing:
            found[name] = Exclusion(LOST_SECONDS, "its shares do not give what it announced")
    for dealer, holder in recovered.disputes:
        others[dealer].add(holder)
        others[holder].add(dealer)
    for name, disputed in others.items():
        if name in disputed:
            found[name] = Exclusion(DISPUTED_SECONDS, "it sent a false share of its own secret")
        elif len(disputed) > spare:
            found[name] = Exclusion(DISPUTED_SECONDS, f"in dispute with {len(disputed)} devices over shares")
    return dict(sorted(found.items()))


def exclude(connection: Connection, round_id: str, found: Mapping[str, Exclusion], now: float) -> None:
    """Leave devices out from now on."""
    for name, each in found.items():
        row = {"device_id": name, "round_id": round_id, "reason": each.reason, "ends_at": now + each.seconds}
        connection.execute(insert(exclusions).values(**row, excluded_at=now))


def excluded_until(connection: Connection, device_id: str, now: float) -> float | None:
    """When a device may join groups again, None where it may now."""
    query = select(func.max(exclusions.c.ends_at)).where(exclusions.c.device_id == device_id)
    ends = connection.execute(query).scalar()
    return None if ends is None or ends <= now else float(ends)
