"""The rows of Liu & Peng 2020's tables 2 to 4 on meetings, of the private default, and of what goes beyond the paper.

All settings are chosen on development meetings: the second pass' weights first, then lambda and these together, anew
for every method, each at the point of a grid with the fewest word errors, averaged with its neighbours', so that no
lucky point wins."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.wire.messages import MarginalPlan
from examples.liu_2020.adaptation import Bounded, Exact, Method, Paper, Server, additions, baseline, simulate
from examples.liu_2020.lists import BANDWIDTH, Hearing, Listener
from rescoring.combination import CombinationWeights
from server.lab.simulation.progress import Tell
from server.lab.tuning.search import Axes, best, smoothed
from server.privacy.costs import calibrate

Array = NDArray[np.float64]
Step = Callable[[int, int], None]


SCALES: Axes = {
    "language_model": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2),
    "word_bonus": (-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
    "unlisted_bonus": (-8.0, -6.0, -4.0, -2.0, 0.0, 2.0),
}
"""Values that are tried. Half of the language models' part is the n-gram's, as in Liu & Peng 2020."""
MARGINALS: Axes = {
    "marginal": (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6),
    "language_model": SCALES["language_model"],
    "word_bonus": SCALES["word_bonus"],
}
"""Lambda here times the language models' weight, by which it counts, so that the one is chosen whatever the other. The
smoothing stays what servers publish with: beyond a thousand words it and lambda say the same, and noise costs more."""
PSEUDO = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Of :func:`rescoring.marginals.reliability`."""


def tuned_baseline(
    clients: Sequence[Listener], tell: Step = lambda *_: None, scales: Axes = SCALES
) -> CombinationWeights:
    """The second pass without marginals at its best, with neural and n-gram scores interpolated at 0.5."""
    return best(scales, CombinationWeights(), lambda weights: _sum(baseline(clients, weights)), tell)


def tuned_marginals(
    clients: Sequence[Listener],
    background: Array,
    how: Method,
    rounds: int,
    axes: Axes,
    tell: Step = lambda *_: None,
    alone: bool = False,
) -> CombinationWeights:
    """The method's weights, chosen together at T = ``rounds``: lambda, the language models' weight, by which it counts,
    and the words' bonus. As if the personal part were renewed once a round, for which a grid takes seconds. alone:
    without a server."""
    server = None if alone else Exact(background, how.weights.smoothing)
    added = additions(clients, background, how, rounds, server)

    def errors_of(tried: CombinationWeights) -> int:
        strength = by_itself(tried).marginal
        lists = ((client.heard, own) for client, own in zip(clients, added, strict=True))
        return _sum(heard.errors[heard.best(heard.total(tried, strength * own))] for heard, own in lists)

    return by_itself(best(axes, how.weights, errors_of, tell))


def by_itself(weights: CombinationWeights) -> CombinationWeights:
    """Lambda as it is, from what it comes to with the language models' weight."""
    return replace(weights, marginal=weights.marginal / weights.language_model)


def edges(axes: Axes, weights: CombinationWeights) -> list[str]:
    """The weights that lie at an end of their axis which others could lie beyond: the grid is too small."""
    found = weights.to_mapping() | {"marginal": weights.marginal * weights.language_model}
    ends = {name: {max(values), min(values)} - {0.0} for name, values in axes.items()}
    return [name for name, values in ends.items() if any(math.isclose(found[name], end) for end in values)]


def adaptation_errors(
    clients: Sequence[Listener], background: Array, how: Method, rounds: int, alone: bool = False
) -> int:
    """Word errors with an exact server (eq. 6), or ``alone`` without any."""
    server = None if alone else Exact(background, how.weights.smoothing)
    return _sum(simulate(clients, background, how, rounds, server))


def _sum(errors: Iterable[Any]) -> int:
    return sum(int(found.sum()) for found in errors)


BASELINE = "second pass without marginals"
ROUNDS = (1, 2, 5, 10)
EPSILONS = (2.0, 1.0, 0.5, 0.1)
PRIVATE_EPSILONS = (1.0, 2.0, 4.0, 8.0)
EXACT = "no noise"
GLOBAL = "no noise, whole counts"
POPULATIONS = (4, 16, 64, 256)
"""Of the global part alone: how many times as many clients, who say the like."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: a method over T rounds with a server. repeats: runs that are averaged, where noise is drawn."""

    table: str
    name: str
    how: Method
    rounds: int
    server: Callable[[], Server | None]
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """Word errors of a row: of every client's utterances, [U] each, averaged over the repeats."""

    table: str
    name: str
    errors: tuple[NDArray[np.float64], ...]


def every_row(
    background: Array, weights: CombinationWeights, rounds: int, repeats: int, extensions: Mapping[str, Method]
) -> Iterator[Setting]:
    """Tables 2, 3 and 4; the default of rounds (bounded contributions, noise by the server), whose epsilon is a user's,
    over all rounds; and what goes beyond the paper, each alone and all that earned their place together. weights: with
    lambda and smoothing as they were tuned, at alpha 0.5, beta 0.25 and sigma 5. rounds: the T of tables 3 and 4.
    repeats: runs of each noised row."""
    exact = partial(Exact, background, weights.smoothing)

    def row(table: str, name: str, **changes: Any) -> Setting:
        return Setting(table, name, Method(replace(weights, **changes), renewed="round"), rounds, exact)

    for several in ROUNDS:
        yield replace(row("2", f"FMP, T = {several}"), rounds=several)
    yield row("3", "alpha 0.5, beta 0.25, sigma 5")
    for sigma in (0.1, 1.0, 10.0, 100.0):
        yield row("3", f"alpha 0.5, beta 0.25, sigma {sigma:g}", sigma=sigma)
    yield row("3", "alpha 0, beta 0.75, sigma 5", alpha=0.0, beta=0.75)
    yield row("3", "alpha 0.75, beta 0, sigma 5", alpha=0.75, beta=0.0)
    yield row("4", EXACT, sigma=0.1)
    for epsilon in EPSILONS:
        paper = partial(Paper, background, weights.smoothing, epsilon)
        name = f"epsilon {epsilon:g} of a count"
        yield replace(row("4", name, sigma=0.1), server=paper, repeats=repeats)
    for epsilon in PRIVATE_EPSILONS:
        bounded = partial(Bounded, background, calibrate(MarginalPlan(), epsilon, rounds))
        name = f"epsilon {epsilon:g} of a user"
        yield replace(row("4 private", name, sigma=0.1), server=bounded, repeats=repeats)
    yield row("4 global", GLOBAL, sigma=0.1, alpha=0.75, beta=0.0)
    for epsilon, times in ((1.0, 1), (2.0, 1), (4.0, 1), (8.0, 1), *((8.0, times) for times in POPULATIONS)):
        # The noise of a release is the same for any number of clients, so more of them are as good as less noise.
        plan = calibrate(MarginalPlan(), epsilon, rounds)
        bounded = partial(Bounded, background, plan.model_copy(update={"epsilon": plan.epsilon * times}))
        name = f"epsilon {epsilon:g} of a user" + (f", {times} times as many" if times > 1 else "")
        yield replace(row("4 global", name, sigma=0.1, alpha=0.75, beta=0.0), server=bounded, repeats=repeats)
    for name, how in extensions.items():
        yield Setting("5", name, how, rounds, partial(Exact, background, how.weights.smoothing))


def run(
    clients: Sequence[Listener], background: Array, plain: CombinationWeights, settings: Sequence[Setting], tell: Tell
) -> list[Row]:
    """The baseline with the weights ``plain``, then every setting's row."""
    found = [Row("2", BASELINE, tuple(own.astype(np.float64) for own in baseline(clients, plain)))]
    for number, each in enumerate(settings):
        tell("rows", number, len(settings))
        runs = [simulate(clients, background, each.how, each.rounds, each.server()) for _ in range(each.repeats)]
        mean = tuple(np.mean(np.stack(of_client), axis=0) for of_client in zip(*runs, strict=True))
        found.append(Row(each.table, each.name, mean))
    tell("rows", len(settings), len(settings))
    return found


AS_HEARD = "personal part alone, words counted as heard"
PERSONAL = "personal part alone, renewed each round"
FOLLOWING = "personal part after each utterance"
"""The latter two count a heard word by how reliable it is, where that is known."""
CORRECTED_ROUNDS = "personal part alone, one utterance in five corrected, renewed each round"
CORRECTED_FOLLOWING = "personal part after each utterance, one in five corrected"
"""The same two where users correct what was heard, and only what they correct counts: it is worth so much more that
words of the lists add nothing to it."""
AS_DEVICES = "personal part as devices come, one in five corrected"
"""With the packaged lambda: nothing of it is tuned on meetings."""
YARDSTICK = "yardstick: best entries are known"
TRUTH = "yardstick: what was said is known"
"""Counts of the entries with the fewest errors, and of the true words: what better counts could be worth at most."""


def extend(
    clients: Sequence[Listener],
    background: Array,
    start: CombinationWeights,
    rounds: int,
    tell: Tell = lambda *_: None,
    axes: Axes = MARGINALS,
    alone: bool = False,
    hearing: Hearing | None = None,
) -> tuple[dict[str, Method], dict[str, int]]:
    """Choose the weights of what goes beyond the paper and of its yardsticks, each on its own. alone: without a server,
    where the paper's own personal part is one of them. Returns the methods by name, in the order of the table, and
    their errors on development meetings."""
    own = Method(start if hearing is None else replace(start, sigma=BANDWIDTH))
    corrected = Method(start, ranks="corrected")
    packaged = Bundle.open().combination.to_mapping()
    as_packaged = {name: packaged[name] for name in ("marginal", "beta", "sigma", "smoothing")}
    device = Method(replace(start, **as_packaged), ranks="device")
    following = {FOLLOWING: own, CORRECTED_FOLLOWING: corrected, AS_DEVICES: device}
    methods = {**following, YARDSTICK: Method(start, ranks="errors"), TRUTH: Method(start, ranks="said")}
    if alone:
        methods = {PERSONAL: own, CORRECTED_ROUNDS: corrected, **methods}
        methods = {name: how if name in following else replace(how, renewed="round") for name, how in methods.items()}
    if hearing is not None:
        methods = {AS_HEARD: Method(start, renewed="round" if alone else "utterance"), **methods}
    told = ("corrected", "device", "said")
    if any(words is None for client in clients for words in client.heard.said):
        methods = {name: how for name, how in methods.items() if how.ranks not in told}
    for name, how in methods.items():
        known = hearing if name in (PERSONAL, FOLLOWING) else None
        if name != AS_DEVICES:
            methods[name] = tuned_method(clients, background, how, rounds, axes, partial(tell, name), alone, known)
    errors = {name: adaptation_errors(clients, background, how, rounds, alone) for name, how in methods.items()}
    return methods, errors


def tuned_method(
    clients: Sequence[Listener],
    background: Array,
    how: Method,
    rounds: int,
    axes: Axes,
    tell: Step,
    alone: bool,
    hearing: Hearing | None,
) -> Method:
    """The method with the weights chosen for it, and where it is known how the recognizer hears, with the reliability
    of the fewest errors."""
    if hearing is None:
        return replace(how, weights=tuned_marginals(clients, background, how, rounds, axes, tell, alone))
    tried = [replace(how, reliability=hearing.reliability(pseudo), pseudo=pseudo) for pseudo in PSEUDO]
    first = tuned_marginals(clients, background, tried[len(tried) // 2], rounds, axes, tell, alone)
    every = [replace(each, weights=first) for each in tried]
    errors = smoothed(np.array([adaptation_errors(clients, background, each, rounds, alone) for each in every]))
    chosen = every[int(errors.argmin())]
    return replace(chosen, weights=tuned_marginals(clients, background, chosen, rounds, axes, tell, alone))


def alone_rows(methods: Mapping[str, Method], rounds: int) -> Iterator[Setting]:
    """A row a method, of devices without a server."""
    for name, how in methods.items():
        yield Setting("5", name, how, rounds, lambda: None)
