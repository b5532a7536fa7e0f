"""The rows of Liu & Peng 2020's tables 2 to 4 on meetings, of the private default, and of what goes beyond the paper.

All settings are chosen on development meetings: the second pass' weights first, lambda and the smoothing next,
extensions last. Every choice is the point of a grid with the fewest word errors, each count averaged with its
neighbours', so that one lucky point does not win. Every extension is tried beside the paper's method with a personal
part that follows after each utterance, and earns its place if development meetings have fewer word errors with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.liu_2020.adaptation import Bounded, Exact, Method, Paper, Server, baseline, plan_for, simulate
from examples.liu_2020.lists import Listener
from rescoring.combination import CombinationWeights
from server.lab.simulation.progress import Tell
from server.lab.tuning.search import smoothed

__all__ = [
    "ALL",
    "BASELINE",
    "EPSILONS",
    "EXACT",
    "Extended",
    "FOLLOWING",
    "Grid",
    "POSTERIOR",
    "PRIVATE_EPSILONS",
    "Plan",
    "ROUNDS",
    "Row",
    "Setting",
    "YARDSTICK",
    "adaptation_errors",
    "choose",
    "extend",
    "extension_rows",
    "paper_rows",
    "private_rows",
    "run",
    "tuned_baseline",
    "tuned_marginals",
]

Array = NDArray[np.float64]
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
    background: Array,
    start: CombinationWeights,
    grid: Grid,
    rounds: int,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> CombinationWeights:
    """Lambda and the smoothing of eq. 4 for the paper's method at T = ``rounds``; the other weights stay."""

    def errors_of(point: Mapping[str, Any]) -> int:
        return adaptation_errors(clients, background, Method(replace(start, **point)), rounds)

    return replace(start, **choose(grid.marginals, errors_of, tell))


def adaptation_errors(clients: Sequence[Listener], background: Array, how: Method, rounds: int) -> int:
    """Word errors with an exact server (eq. 6)."""
    server = Exact(background, how.weights.smoothing)
    return _sum(simulate(clients, background, how, rounds, server))


def _sum(errors: Sequence[Any]) -> int:
    return int(sum(int(found.sum()) for found in errors))


BASELINE = "second pass without marginals"
ROUNDS = (1, 2, 5, 10)
EPSILONS = (2.0, 1.0, 0.5, 0.1)
PRIVATE_EPSILONS = (1.0, 2.0, 4.0, 8.0)
EXACT = "no noise"


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: a method over T rounds with a server. repeats: runs that are averaged, where noise is drawn."""

    table: str
    name: str
    how: Method
    rounds: int
    server: Callable[[], Server]
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """Word errors of a row: of every client's utterances, [U] each, averaged over the repeats."""

    table: str
    name: str
    errors: tuple[NDArray[np.float64], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the rows are made from. weights: with lambda and smoothing as they were tuned, at alpha 0.5, beta 0.25 and
    sigma 5. rounds: the T of tables 3 and 4. repeats: runs of each noised row."""

    background: Array
    weights: CombinationWeights
    rounds: int = 10
    repeats: int = 3
    extensions: Mapping[str, Method] = field(default_factory=dict)

    def setting(self, table: str, name: str, rounds: int | None = None, **changes: Any) -> Setting:
        how = Method(replace(self.weights, **changes))
        server = partial(Exact, self.background, self.weights.smoothing)
        return Setting(table, name, how, self.rounds if rounds is None else rounds, server)


def paper_rows(plan: Plan) -> Iterator[Setting]:
    """Tables 2, 3 and 4."""
    for rounds in ROUNDS:
        yield plan.setting("2", f"FMP, T = {rounds}", rounds)
    yield plan.setting("3", "alpha 0.5, beta 0.25, sigma 5")
    for sigma in (0.1, 1.0, 10.0, 100.0):
        yield plan.setting("3", f"alpha 0.5, beta 0.25, sigma {sigma:g}", sigma=sigma)
    yield plan.setting("3", "alpha 0, beta 0.75, sigma 5", alpha=0.0, beta=0.75)
    yield plan.setting("3", "alpha 0.75, beta 0, sigma 5", alpha=0.75, beta=0.0)
    yield plan.setting("4", EXACT, sigma=0.1)
    for epsilon in EPSILONS:
        row = plan.setting("4", f"epsilon {epsilon:g} of a count", sigma=0.1)
        server = partial(Paper, plan.background, plan.weights.smoothing, epsilon)
        yield replace(row, server=server, repeats=plan.repeats)


def private_rows(plan: Plan) -> Iterator[Setting]:
    """The default of rounds: bounded contributions, noise by the server; epsilon is a user's, over all rounds."""
    row = plan.setting("4 private", "", sigma=0.1)
    for epsilon in PRIVATE_EPSILONS:
        server = partial(Bounded, plan.background, plan_for(epsilon, plan.rounds))
        name = f"epsilon {epsilon:g} of a user"
        yield replace(row, name=name, server=server, repeats=plan.repeats)


def extension_rows(plan: Plan) -> Iterator[Setting]:
    """What goes beyond the paper, each alone and all that earned their place together."""
    for name, how in plan.extensions.items():
        smoothing = how.weights.smoothing
        yield Setting("5", name, how, plan.rounds, partial(Exact, plan.background, smoothing))


def run(clients: Sequence[Listener], plan: Plan, settings: Sequence[Setting], tell: Tell) -> list[Row]:
    """The baseline, then every setting's row."""
    plain = baseline(clients, plan.weights)
    found = [Row("2", BASELINE, tuple(errors.astype(np.float64) for errors in plain))]
    for number, setting in enumerate(settings):
        tell("rows", number, len(settings))
        runs = [
            simulate(clients, plan.background, setting.how, setting.rounds, setting.server())
            for _ in range(setting.repeats)
        ]
        mean = tuple(np.mean(np.stack(of_client), axis=0) for of_client in zip(*runs, strict=True))
        found.append(Row(setting.table, setting.name, mean))
    tell("rows", len(settings), len(settings))
    return found


FOLLOWING = "personal part after each utterance"
ALL = "extensions together"
YARDSTICK = "yardstick: best entries are known"
"""Counts of the entries with the fewest errors: what better counts could be worth at most."""

POSTERIOR = "counts by posterior"

_AGAIN: Axes = {"marginal": (0.35, 0.5, 0.75, 1.0, 1.5, 2.0), "smoothing": (5.0, 20.0, 100.0), "beta": (0.1, 0.25, 0.4)}


@dataclass(frozen=True, slots=True)
class Extended:
    """methods: by name, in the order of the table. errors: on development meetings, by name, of the paper's method
    (:data:`FOLLOWING` is it, too, but for when it follows) and of the others."""

    methods: Mapping[str, Method]
    errors: Mapping[str, int]


def extend(
    clients: Sequence[Listener], background: Array, start: CombinationWeights, rounds: int, tell: Tell = lambda *_: None
) -> Extended:
    """Choose how much posteriors count, then lambda, the smoothing and beta with them where they have fewer errors, and
    of the yardstick."""

    def errors_of(how: Method) -> int:
        return adaptation_errors(clients, background, how, rounds)

    def best(name: str, axes: Axes, how: Method) -> Method:
        def changed(point: Mapping[str, Any]) -> Method:
            return replace(how, weights=replace(how.weights, **point))

        return changed(choose(axes, lambda point: errors_of(changed(point)), partial(tell, name)))

    following = Method(replace(start, refresh="utterance"))
    posterior = best(POSTERIOR, {"posterior_scale": (0.1, 0.2, 0.35, 0.5, 1.0)}, following)
    whole = min(following, posterior, key=errors_of)
    methods = {
        FOLLOWING: following,
        POSTERIOR: posterior,
        ALL: best(ALL, _AGAIN, whole),
        YARDSTICK: best(YARDSTICK, _AGAIN, replace(following, ranks="errors")),
    }
    return Extended(methods, {name: errors_of(how) for name, how in methods.items()})
