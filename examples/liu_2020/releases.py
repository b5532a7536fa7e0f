"""The server's side of a round: from what all clients counted to the distribution that it publishes.

Exact: eq. 6 of Liu & Peng 2020. ``paper``: eq. 8 and 9, fresh noise on all counts so far. ``bounded``: what devices of
this project send by default, few words of each client with bounded weight, noised once and added up over the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from device_sdk.privacy.contributions import bounded_counts
from device_sdk.wire.messages import MarginalPlan
from examples.liu_2020.personal import Personal
from rescoring.marginals import personal_unigram, pseudo_count
from server.aggregation.federated_average import federated_average, laplace_noise, nearest_distribution, noised_average
from server.aggregation.marginals import CountSum, add, global_marginal, init
from server.plans.round import RoundSettings
from server.privacy.noise import noised, released_variance

__all__ = ["Bounded", "Exact", "Paper", "Server"]

Array = NDArray[np.float64]


class Server(Protocol):
    """Publishes after each round. devices: all clients, at the end of the round."""

    def publish(self, devices: Sequence[Personal]) -> Array | None: ...


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
        return federated_average(own, weights)


@dataclass(frozen=True, slots=True)
class Paper:
    """Equations 8 and 9: noise of scale 1 / epsilon on each word's count in every round, drawn afresh.

    epsilon is that of one count in one release. An utterance that names several words, a user, or ten rounds cost more.
    """

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
        noise = laplace_noise(len(counts), self.epsilon)
        return nearest_distribution(noised_average(counts, noise)) if counts.sum() + noise.sum() > 0 else None


@dataclass(slots=True)
class Bounded:
    """The default of rounds: utterances since the last report, ``plan.max_words`` words each, one noised sum a round.

    Owns the running sum of releases. suppression: of :func:`~server.aggregation.marginals.surviving_counts`.
    """

    background: Array
    plan: MarginalPlan = field(default_factory=MarginalPlan)
    smoothing: float = RoundSettings().smoothing
    suppression: float = RoundSettings().suppression
    released: NDArray[np.int64] | None = None
    variance: float = 0.0

    def publish(self, devices: Sequence[Personal]) -> Array | None:
        """The released counts of all rounds so far, smoothed with the background [n]."""
        total: CountSum = init(len(self.background))
        for device in devices:
            total = add(total, bounded_counts(device.pending, self.plan))
        found = noised(total.total, self.plan)
        self.released = found if self.released is None else self.released + found
        self.variance += released_variance(self.plan, total.reports)
        return global_marginal(
            self.released, self.variance, self.background, self.smoothing, self.plan.mechanism, self.suppression
        )
