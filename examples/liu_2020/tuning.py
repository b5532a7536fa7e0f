"""Choices on development meetings: the second pass' weights first, lambda and the smoothing next, extensions last.

Every choice is the point of a grid with the fewest word errors, each count averaged with its neighbours', so that one
lucky point does not win. Test meetings are never asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from examples.liu_2020.personal import Method, Shipped
from examples.liu_2020.releases import Exact
from examples.liu_2020.rounds import baseline, simulate
from examples.liu_2020.scores import Listener
from rescoring.combination import CombinationWeights
from server.lab.tuning.search import smoothed

__all__ = ["Grid", "adaptation_errors", "choose", "tuned_baseline", "tuned_marginals"]

Axes = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that are tried. Half of the language models' part is the n-gram's, as in Liu & Peng 2020."""

    scales: Axes = field(
        default_factory=lambda: {
            "language_model": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2),
            "word_bonus": (-1.0, 0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
            "unlisted_bonus": (-8.0, -6.0, -4.0, -2.0, 0.0, 2.0),
        }
    )
    marginals: Axes = field(
        default_factory=lambda: {
            "marginal": (0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0),
            "smoothing": (5.0, 20.0, 100.0),
        }
    )


def choose(
    axes: Axes, errors_of: Callable[[Mapping[str, Any]], int], tell: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """The point of the grid whose errors, averaged with its neighbours', are fewest; the first of equals."""
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    errors = np.zeros(len(points))
    for number, point in enumerate(points):
        errors[number] = errors_of(point)
        tell(number + 1, len(points))
    averaged = smoothed(errors.reshape([len(values) for values in axes.values()]))
    return points[int(averaged.argmin())]


def tuned_baseline(
    clients: Sequence[Listener], grid: Grid, tell: Callable[[int, int], None] = lambda *_: None
) -> CombinationWeights:
    """The second pass without marginals at its best, with neural and n-gram scores interpolated at 0.5."""

    def errors_of(point: Mapping[str, Any]) -> int:
        return _sum(baseline(clients, CombinationWeights(**point)))

    return CombinationWeights(**choose(grid.scales, errors_of, tell))


def tuned_marginals(
    clients: Sequence[Listener],
    shipped: Shipped,
    start: CombinationWeights,
    grid: Grid,
    rounds: int,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> CombinationWeights:
    """Lambda and the smoothing of eq. 4 for the paper's method at T = ``rounds``; the other weights stay."""

    def errors_of(point: Mapping[str, Any]) -> int:
        return adaptation_errors(clients, shipped, Method(replace(start, **point)), rounds)

    return replace(start, **choose(grid.marginals, errors_of, tell))


def adaptation_errors(clients: Sequence[Listener], shipped: Shipped, how: Method, rounds: int) -> int:
    """Word errors with an exact server (eq. 6)."""
    server = Exact(shipped.background, how.weights.smoothing)
    return _sum(simulate(clients, shipped, how, rounds, server))


def _sum(errors: Sequence[Any]) -> int:
    return int(sum(int(found.sum()) for found in errors))
