"""The rows of Liu & Peng 2020's tables 2 to 4 on meetings, of the private default, and of what goes beyond the
paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.liu_2020.personal import Method, Shipped
from examples.liu_2020.private import plan_for
from examples.liu_2020.releases import Bounded, Exact, Paper, Server
from examples.liu_2020.rounds import baseline, simulate
from examples.liu_2020.scores import Listener
from rescoring.combination import CombinationWeights
from server.lab.simulation.progress import Tell

__all__ = [
    "BASELINE",
    "EPSILONS",
    "EXACT",
    "PRIVATE_EPSILONS",
    "ROUNDS",
    "Plan",
    "Row",
    "Setting",
    "extension_rows",
    "paper_rows",
    "private_rows",
    "run",
]

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

    shipped: Shipped
    weights: CombinationWeights
    rounds: int = 10
    repeats: int = 3
    extensions: Mapping[str, Method] = field(default_factory=dict)

    def setting(self, table: str, name: str, rounds: int | None = None, **changes: Any) -> Setting:
        how = Method(replace(self.weights, **changes))
        server = partial(Exact, self.shipped.background, self.weights.smoothing)
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
        server = partial(Paper, plan.shipped.background, plan.weights.smoothing, epsilon)
        yield replace(row, server=server, repeats=plan.repeats)


def private_rows(plan: Plan) -> Iterator[Setting]:
    """The default of rounds: bounded contributions, noise by the server; epsilon is a user's, over all rounds."""
    row = plan.setting("4 private", "", sigma=0.1)
    for epsilon in PRIVATE_EPSILONS:
        server = partial(Bounded, plan.shipped.background, plan_for(epsilon, plan.rounds))
        name = f"epsilon {epsilon:g} of a user"
        yield replace(row, name=name, server=server, repeats=plan.repeats)


def extension_rows(plan: Plan) -> Iterator[Setting]:
    """What goes beyond the paper, each alone and all that earned their place together."""
    for name, how in plan.extensions.items():
        smoothing = how.weights.smoothing
        yield Setting("5", name, how, plan.rounds, partial(Exact, plan.shipped.background, smoothing))


def run(clients: Sequence[Listener], plan: Plan, settings: Sequence[Setting], tell: Tell) -> list[Row]:
    """The baseline, then every setting's row."""
    plain = baseline(clients, plan.weights)
    found = [Row("2", BASELINE, tuple(errors.astype(np.float64) for errors in plain))]
    for number, setting in enumerate(settings):
        tell("rows", number, len(settings))
        runs = [
            simulate(clients, plan.shipped, setting.how, setting.rounds, setting.server())
            for _ in range(setting.repeats)
        ]
        mean = tuple(np.mean(np.stack(of_client), axis=0) for of_client in zip(*runs, strict=True))
        found.append(Row(setting.table, setting.name, mean))
    tell("rows", len(settings), len(settings))
    return found
