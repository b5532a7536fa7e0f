"""Which parameters dominate a delta, and whether clipping by layer can then be worth anything (figure 5, section 5.3).

In the English model of Pelikan et al. 2023 LayerNorm's deltas are an order of magnitude larger than attention's, so
that one bound on the whole leaves attention below the noise. In its French and German models they are not, and clipping
by layer changes nothing there (appendix D.6, table 17)."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from examples.runner import seed_difference

LEAST = 10.0
"""How much larger LayerNorm's values must be than attention's, by their root mean square."""
LOST = 0.05
"""Word error that clipping as a whole must cost at the entry's noise."""
CLEAN, NOISED = "no noise, global", "middle noise, global"
"""The rows that the entry test compares: without noise, and with a noise of 0.048 of the bound."""


@dataclass(frozen=True, slots=True)
class Depth:
    """One network after the training of its seed model: what a round of its clients sends. values: parameters;
    imbalance: see :func:`imbalance`; shares: of the squared norm, by kind of parameter; error: of the seed model."""

    layers: int
    size: int
    values: int
    imbalance: float
    shares: Mapping[str, float]
    error: float


def kind_of(name: str) -> str:
    """Of a parameter of the CTC transformer."""
    parts = name.split(".")
    if any(part.endswith("norm") for part in parts):
        return "LayerNorm"
    if parts[0] in ("convolution", "output"):
        return parts[0]
    return "perceptron" if {"inner", "outer"} & set(parts) else "attention"


def energy_shares(layers: Mapping[str, float]) -> dict[str, float]:
    """How much of the squared norm of deltas each kind of parameter has, most first; per-layer clipping takes from the
    kinds whose share is larger than that of their values. layers: norms by parameter name."""
    squares: Counter[str] = Counter()
    for name, norm in layers.items():
        squares[kind_of(name)] += norm**2  # type: ignore[assignment]
    whole = sum(squares.values())
    return {kind: square / whole for kind, square in squares.most_common()} if whole else {}


def root_mean_squares(layers: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Of the values of a delta, by kind of parameter. layers: norms by parameter name; sizes: how many values each
    has."""
    squares: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, norm in layers.items():
        squares[kind_of(name)] += norm**2  # type: ignore[assignment]
        counts[kind_of(name)] += sizes[name]
    return {kind: math.sqrt(square / counts[kind]) for kind, square in squares.items()}


def imbalance(layers: Mapping[str, float], sizes: Mapping[str, int]) -> float:
    """How much larger LayerNorm's values are than attention's, by root mean square; NaN where either has none."""
    found = root_mean_squares(layers, sizes)
    if not {"LayerNorm", "attention"} <= set(found) or not found["attention"]:
        return math.nan
    return found["LayerNorm"] / found["attention"]


def entry(rates: Mapping[str, Mapping[str, Any]], measured: float) -> dict[str, Any]:
    """Whether rows of clipping by layer can tell anything on this network. rates: word errors by row name, as
    :func:`examples.runner.rates` has them; measured: its imbalance."""
    known = {CLEAN, NOISED} <= set(rates)
    lost = seed_difference(rates[CLEAN], rates[NOISED]) if known else {"mean": math.nan}
    passes = measured >= LEAST and lost["mean"] >= LOST
    return {"imbalance": measured, "lost": lost, "passes": passes}
