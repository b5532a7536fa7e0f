"""What goes beyond Liu & Peng 2020, chosen on development meetings: each alone, then all that earn their place
together.

Every extension is tried beside the paper's method with a personal part that follows after each utterance. One earns its
place if development meetings have fewer word errors with it than without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from examples.liu_2020.personal import Method, Shipped
from examples.liu_2020.scores import Listener
from examples.liu_2020.tuning import Axes, adaptation_errors, choose
from rescoring.combination import CombinationWeights
from server.lab.simulation.progress import Tell

__all__ = ["ALL", "EXTENSIONS", "FOLLOWING", "YARDSTICK", "Extended", "extend"]

FOLLOWING = "personal part after each utterance"
ALL = "extensions together"
YARDSTICK = "yardstick: best entries are known"
"""Counts of the entries with the fewest errors: what better counts could be worth at most."""

EXTENSIONS: Mapping[str, Axes] = {
    "counts by posterior": {"posterior_scale": (0.1, 0.2, 0.35, 0.5, 1.0)},
}
"""Name -> the weights that turn it on, with the values tried."""

_AGAIN: Axes = {
    "marginal": (0.35, 0.5, 0.75, 1.0, 1.5, 2.0),
    "smoothing": (5.0, 20.0, 100.0),
    "beta": (0.1, 0.25, 0.4),
}


@dataclass(frozen=True, slots=True)
class Extended:
    """methods: by name, in the order of the table. errors: on development meetings, by name, of the paper's method
    (:data:`FOLLOWING` is it, too, but for when it follows) and of each extension. kept: what earned its place."""

    methods: Mapping[str, Method]
    errors: Mapping[str, int]
    kept: tuple[str, ...]


def extend(
    clients: Sequence[Listener],
    shipped: Shipped,
    start: CombinationWeights,
    rounds: int,
    tell: Tell = lambda *_: None,
) -> Extended:
    """Choose each extension's settings, then lambda, the smoothing and beta of all that are kept together, and of the
    yardstick."""

    def errors_of(weights: CombinationWeights, ranks: Literal["first", "errors"] = "first") -> int:
        return adaptation_errors(clients, shipped, Method(weights, ranks), rounds)

    following = replace(start, refresh="utterance")
    methods = {FOLLOWING: Method(following)}
    errors = {FOLLOWING: errors_of(following)}
    kept: list[str] = []
    together: dict[str, Any] = {}
    for name, axes in EXTENSIONS.items():
        changes = _chosen(axes, following, errors_of, partial(tell, name))
        methods[name] = Method(replace(following, **changes))
        errors[name] = errors_of(methods[name].weights)
        if errors[name] < errors[FOLLOWING]:
            kept.append(name)
            together |= changes
    whole = replace(following, **together)
    again = _chosen(_AGAIN, whole, errors_of, partial(tell, ALL))
    methods[ALL] = Method(replace(whole, **again))
    errors[ALL] = errors_of(methods[ALL].weights)
    known = _chosen(_AGAIN, following, partial(errors_of, ranks="errors"), partial(tell, YARDSTICK))
    methods[YARDSTICK] = Method(replace(following, **known), "errors")
    errors[YARDSTICK] = errors_of(methods[YARDSTICK].weights, "errors")
    return Extended(methods, errors, tuple(kept))


def _chosen(
    axes: Axes,
    start: CombinationWeights,
    errors_of: Callable[[CombinationWeights], int],
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    return choose(axes, lambda point: errors_of(replace(start, **point)), tell)
