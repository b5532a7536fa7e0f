"""A round of Liu & Peng 2020: what a device knows of its user (eq. 1 to 5), what the server publishes (eq. 6 to 9).

The equations and the extensions are :mod:`rescoring`'s own; what else a device does is spared, so that a table of many
thousand utterances takes minutes. A test compares the two. A client's utterances lie in T + 1 groups in the order of
time; those of round t are rescored with what the server published after round t - 1. All clients take part."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from device_sdk.personalization.cache import EVIDENCE, strength_of
from device_sdk.privacy.contributions import bounded_counts
from device_sdk.wire.messages import FIXED_POINT, MarginalPlan
from examples.liu_2020.lists import Heard, Listener
from rescoring.combination import CombinationWeights
from rescoring.marginals import (
    adaptation,
    gaussian_kernel,
    interpolated_marginal,
    personal_unigram,
    pseudo_count,
)
from server.aggregation.marginals import nearest_distribution, smoothed, sum_counts, surviving_counts
from server.plans.round import RoundSettings
from server.privacy.noise import add_noise, released_variance

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Method:
    """A way to adapt: the weights of a device, and whose order eq. 3 goes by: the ``first`` pass' as in Liu & Peng
    2020. ``device`` counts as devices do: by the second pass, or what was said where the user corrects it, to
    which what was heard gives way. ``corrected`` counts what was said there, and nothing else. ``errors`` counts the
    entry with the fewest word errors alone, ``said`` what was said: yardsticks, for which somebody would have to know
    it. renewed: when the personal part follows what was said, after each utterance as on a device, or once a round
    (section 2.2 has both). reliability: what each heard word counts [n]; all alike in the paper. pseudo: of it."""

    weights: CombinationWeights
    ranks: Literal["first", "device", "corrected", "errors", "said"] = "first"
    renewed: Literal["utterance", "round"] = "utterance"
    reliability: Array | None = field(default=None, repr=False, compare=False)
    pseudo: float | None = None


@dataclass(frozen=True, slots=True)
class Personal:
    """counts: weighted word counts so far [n] (the sum of eq. 4). pending: of the utterances since the last
    report [n]. confirmed: words -> in how many utterances that the user corrected [n]."""

    counts: Array
    pending: Array
    confirmed: Array


def begin(words: int) -> Personal:
    """A device that has heard nothing. words: n."""
    return Personal(np.zeros(words), np.zeros(words), np.zeros(words))


def adaptation_of(known: Personal, background: Array, global_: Array | None, how: Method) -> Array:
    """Equations 1, 2 and 4 for what a device knows: log of eq. 1's factor of each word [n], nats. global_: what the
    server published last [n], or None."""
    weights = how.weights
    counts = known.counts if how.renewed == "utterance" else np.maximum(known.counts - known.pending, 0.0)
    own = personal_unigram(counts, background, weights.smoothing)
    told = pseudo_count(known.confirmed)
    if told:
        own = personal_unigram(known.confirmed, own, EVIDENCE)
    g = interpolated_marginal(background, global_, own, weights.alpha, weights.beta)
    return adaptation(g, background, strength_of(told, weights))


def learn(known: Personal, heard: Heard, scores: Array, how: Method) -> Personal:
    """The device after more utterances, of which nothing but their own n-best lists is known (eq. 3 and 4), or what the
    user corrects. scores: of the second pass [H]."""
    told = np.ones(len(heard), np.bool_) if how.ranks == "said" else heard.corrected
    said = [said for said, given in zip(heard.said, told, strict=True) if given and said is not None]
    words = np.concatenate([heard.flat[:0], *said])
    worth, confirmed = np.ones(len(words)), known.confirmed
    if how.ranks == "device":
        shares = shares_of(heard, scores, how)
        shares[np.repeat(heard.corrected, np.diff(heard.first))] = 0.0
        words, worth = np.concatenate([words, heard.flat]), np.concatenate([worth, shares[heard.owner]])
        for each in said:
            confirmed = confirmed + np.bincount(np.unique(each[each > 0]), minlength=len(confirmed))
    elif how.ranks not in ("corrected", "said"):
        words, worth = heard.flat, shares_of(heard, scores, how)[heard.owner]
        if how.reliability is not None:
            worth *= how.reliability[words]
    found = np.bincount(words, worth, minlength=len(known.counts))
    return Personal(known.counts + found, known.pending + found, confirmed)


def shares_of(heard: Heard, scores: Array, how: Method) -> Array:
    """What each hypothesis counts [H]: eq. 3's kernel of its rank."""
    if how.ranks == "errors":
        shares = np.zeros(len(scores))
        shares[heard.best(-heard.errors)] = 1.0
        return shares
    return gaussian_kernel(heard.ranks(scores if how.ranks == "device" else None), how.weights.sigma)


@dataclass(frozen=True, slots=True)
class Exact:
    """Equation 6. background: u [n]; smoothing: of eq. 4, in words."""

    background: Array
    smoothing: float

    def publish(self, devices: Sequence[Personal]) -> Array | None:
        """The global distribution of everything counted so far [n]; None where nothing was."""
        weights = [pseudo_count(device.counts) for device in devices]
        if not sum(weights) > 0:
            return None
        own = [personal_unigram(device.counts, self.background, self.smoothing) for device in devices]
        return np.asarray(np.average(own, axis=0, weights=weights), np.float64)


@dataclass(frozen=True, slots=True)
class Paper:
    """Equations 8 and 9: noise of scale 1 / epsilon on each word's count in every round, drawn afresh. epsilon is that
    of one count in one release. An utterance that names several words, a user, or ten rounds cost more."""

    background: Array
    smoothing: float
    epsilon: float

    def publish(self, devices: Sequence[Personal]) -> Array | None:
        """What is negative after the noise is no probability: the nearest distribution stands in for it. None where the
        noise outweighs all counts together."""
        exact = Exact(self.background, self.smoothing).publish(devices)
        if exact is None:
            return None
        counts = exact * sum(pseudo_count(device.counts) for device in devices)
        plan = MarginalPlan(mode="paper", epsilon=self.epsilon)
        noisy = counts + add_noise(np.zeros(len(counts), np.int64), plan) / FIXED_POINT
        return nearest_distribution(noisy / noisy.sum()) if noisy.sum() > 0 else None


@dataclass(slots=True)
class Bounded:
    """The default of rounds: utterances since the last report, ``plan.max_words`` words each, one noised sum a round.
    Owns the running sum of releases. suppression: of :func:`~server.aggregation.marginals.surviving_counts`."""

    background: Array
    plan: MarginalPlan = field(default_factory=MarginalPlan)
    smoothing: float = RoundSettings().smoothing
    suppression: float = RoundSettings().suppression
    released: NDArray[np.int64] | None = None
    variance: float = 0.0

    def publish(self, devices: Sequence[Personal]) -> Array | None:
        """The released counts of all rounds so far, smoothed with the background [n]."""
        reports = (bounded_counts(device.pending, self.background, self.plan) for device in devices)
        found = add_noise(sum_counts(reports, len(self.background)), self.plan)
        self.released = found if self.released is None else self.released + found
        self.variance += released_variance(self.plan, len(devices))
        kept = surviving_counts(self.released, self.variance, self.plan.mechanism, self.suppression)
        return smoothed(kept, self.background, self.smoothing)


Server = Exact | Paper | Bounded
"""Publishes after each round what all devices are told: the global distribution [n], or None."""

Errors = list[NDArray[np.int64]]
"""Word errors of every client's utterances, [U] each."""


def groups(count: int, rounds: int) -> list[slice]:
    """``rounds`` + 1 groups of utterances in order, of nearly the same size."""
    bounds = [count * number // (rounds + 1) for number in range(rounds + 2)]
    return [slice(start, end) for start, end in pairwise(bounds)]


def baseline(clients: Sequence[Listener], weights: CombinationWeights) -> Errors:
    """The second pass without marginals, which every table compares with."""
    return [client.heard.errors[client.heard.best(client.heard.total(weights))] for client in clients]


def simulate(clients: Sequence[Listener], background: Array, how: Method, rounds: int, server: Server | None) -> Errors:
    """T = ``rounds`` rounds. server: None for devices on their own, whose global distribution is the background."""
    return _by_rounds(clients, background, rounds, server, partial(_take, background, how))


def additions(
    clients: Sequence[Listener], background: Array, how: Method, rounds: int, server: Server | None
) -> list[Array]:
    """What eq. 1 adds to each hypothesis of every client [H] in T = ``rounds`` rounds at lambda 1, where the personal
    part is renewed once a round, and counts go by anything but the second pass: then no other weight of the second pass
    changes it."""
    once = replace(how, renewed="round", weights=replace(how.weights, marginal=1.0))
    return _by_rounds(clients, background, rounds, server, partial(_add, background, once))


Take = Callable[[Heard, Personal, Array | None], tuple[NDArray[Any], Personal]]
"""What a device does with the utterances of a round, given what it knows and what the server published: a value of each
utterance or hypothesis, and what it knows then."""


def _by_rounds(
    clients: Sequence[Listener], background: Array, rounds: int, server: Server | None, take: Take
) -> list[NDArray[Any]]:
    """Every client's values, in the order of time."""
    devices = [begin(len(background)) for _ in clients]
    found: list[list[NDArray[Any]]] = [[] for _ in clients]
    global_: Array | None = None
    for number in range(rounds + 1):
        for place, client in enumerate(clients):
            said = client.heard.part(groups(len(client), rounds)[number])
            values, devices[place] = take(said, devices[place], global_)
            found[place].append(values)
        if server is not None and number < rounds:
            global_ = server.publish(devices)
        devices = [replace(known, pending=np.zeros_like(known.pending)) for known in devices]  # they have reported
    return [np.concatenate(values) for values in found]


def _add(background: Array, how: Method, said: Heard, known: Personal, global_: Array | None) -> tuple[Array, Personal]:
    added = said.personal(adaptation_of(known, background, global_, how))
    return added, learn(known, said, said.acoustic, how)


def _take(
    background: Array, how: Method, said: Heard, known: Personal, global_: Array | None
) -> tuple[NDArray[np.int64], Personal]:
    """Rescore, then learn, one utterance after the other, or where nothing is renewed between them all at once: the
    errors of what was chosen, which the device never sees, and what it knows then."""
    apart = how.renewed == "utterance"
    errors = [said.errors[:0]]
    for heard in (said.part(slice(number, number + 1)) for number in range(len(said))) if apart else [said]:
        scores = heard.total(how.weights, heard.personal(adaptation_of(known, background, global_, how)))
        errors.append(heard.errors[heard.best(scores)])
        known = learn(known, heard, scores, how)
    return np.concatenate(errors), known
