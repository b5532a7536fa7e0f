"""Algorithm 1 of Liu & Peng 2020: clients rescore, learn from what they recognized, and a server averages what they
learned.

A client's utterances lie in T + 1 groups in the order of time; those of round t are rescored with what the server
published after round t - 1, so the first group has nothing of others. All clients take part in every round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from examples.liu_2020.personal import (
    Method,
    Personal,
    Shipped,
    adaptation_of,
    begin,
    learned,
    reported,
)
from examples.liu_2020.releases import Server
from examples.liu_2020.scores import Listener
from rescoring.combination import CombinationWeights

__all__ = ["baseline", "groups", "simulate"]

Array = NDArray[np.float64]
Errors = list[NDArray[np.int64]]
"""Word errors of every client's utterances, [U] each."""


def groups(count: int, rounds: int) -> list[range]:
    """``rounds`` + 1 groups of utterance numbers in order, of nearly the same size."""
    bounds = [count * number // (rounds + 1) for number in range(rounds + 2)]
    return [range(start, end) for start, end in pairwise(bounds)]


def baseline(clients: Sequence[Listener], weights: CombinationWeights) -> Errors:
    """The second pass without marginals, which every table compares with."""
    return [
        np.array([heard.errors[heard.total(weights).argmax()] for heard in client.heard], np.int64)
        for client in clients
    ]


def simulate(
    clients: Sequence[Listener],
    shipped: Shipped,
    how: Method,
    rounds: int,
    server: Server | None,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Errors:
    """T = ``rounds`` rounds. server: None for devices on their own, whose global distribution is the background."""
    devices = [_Device(client, shipped, how) for client in clients]
    global_: Array | None = None
    for number in range(rounds + 1):
        for device in devices:
            device.take(groups(len(device.client), rounds)[number], global_)
        if server is not None and number < rounds:
            global_ = server.publish([device.known for device in devices])
        for device in devices:
            device.known = reported(device.known)
        tell(number + 1, rounds + 1)
    return [device.errors for device in devices]


class _Device:
    """One client on its way. known: what it has learned. errors: of what it chose so far, which it never sees."""

    def __init__(self, client: Listener, shipped: Shipped, how: Method) -> None:
        self.client, self.shipped, self.how = client, shipped, how
        self.known: Personal = begin(len(shipped.background))
        self.errors = np.zeros(len(client), np.int64)

    def take(self, numbers: range, global_: Array | None) -> None:
        """Rescore, then learn, one utterance after the other."""
        weights = self.how.weights
        adapted = adaptation_of(self.known, self.shipped, global_, weights)
        for number in numbers:
            heard = self.client.heard[number]
            if weights.refresh == "utterance":
                adapted = adaptation_of(self.known, self.shipped, global_, weights)
            scores = heard.total(weights, heard.personal(adapted))
            self.errors[number] = heard.errors[scores.argmax()]
            self.known = learned(self.known, heard, scores, self.how)
