"""Search of the combination weights that make the fewest word errors on development lists."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rescoring.combination import CombinationWeights
from rescoring.words import WordList
from server.lab.tuning.adapting import marginal_errors, others_marginals
from server.lab.tuning.lists import DevelopmentLists

__all__ = ["Grid", "Tuned", "smoothed", "tune"]

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that are tried for each weight, rising."""

    language_model: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    ngram_share: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    word_bonus: tuple[float, ...] = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
    unlisted_bonus: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0)
    marginal: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    smoothing: tuple[float, ...] = (5.0, 20.0)
    alpha: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    beta: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75)
    sigma: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Tuned:
    """weights: the choice. errors: word errors by stage: ``first_pass``, ``rescored``, ``marginals``, ``oracle``."""

    weights: CombinationWeights
    errors: dict[str, int] = field(default_factory=dict)


def tune(
    lists: DevelopmentLists,
    start: CombinationWeights,
    words: WordList,
    background: Array,
    grid: Grid = Grid(),
    progress: Callable[[float], None] | None = None,
) -> Tuned:
    """Choose language-model, word and marginal weights, beginning at ``start``.

    First the weights without adaptation, on their full grid; then lambda, the smoothing and the language models' weight
    (by which lambda counts) around what was chosen, with each speaker's cache simulated in the order of the utterances
    (``marginal_errors``); then beta, alpha and sigma one after the other, with what the other speakers of a source say
    as the global distribution. The choice is the least error count averaged with its neighbours on the grid, so that a
    single lucky point does not win. progress: called with the share done.
    """
    shares = grid.ngram_share if lists.neural is not None and lists.ngram is not None else (start.ngram_share,)
    axes: list[tuple[str, Sequence[float]]] = [
        ("language_model", grid.language_model),
        ("ngram_share", shares),
        ("word_bonus", grid.word_bonus),
        ("unlisted_bonus", grid.unlisted_bonus),
    ]
    done = 0.0

    def count(share: float) -> None:
        nonlocal done
        done += share
        if progress is not None:
            progress(min(1.0, done))

    chosen = _best(axes, start, lists.word_errors, lambda share: count(0.3 * share))
    errors = {"first_pass": lists.first_pass_errors, "rescored": lists.word_errors(chosen)}

    others = others_marginals(lists, chosen, words, background)

    def simulate(weights: CombinationWeights) -> int:
        return int(marginal_errors(lists, weights, words, background, others).sum())

    near = grid.language_model.index(chosen.language_model)
    adapting: list[tuple[str, Sequence[float]]] = [
        ("language_model", grid.language_model[max(0, near - 1) : near + 2]),
        ("marginal", grid.marginal),
        ("smoothing", grid.smoothing),
    ]
    chosen = _best(adapting, chosen, simulate, lambda share: count(0.5 * share))
    for name in ("beta", "alpha", "sigma"):
        if name != "alpha" or others:  # without others there is no global distribution
            axis = [value for value in getattr(grid, name) if _fits(chosen, name, value)]
            chosen = _best([(name, axis)], chosen, simulate, lambda share: None)
        count(0.2 / 3)
    errors |= {"marginals": simulate(chosen), "oracle": lists.oracle_errors}
    return Tuned(chosen, errors)


def smoothed(errors: Array) -> Array:
    """Every point of a grid of error counts averaged with its neighbours, axis by axis; the edge repeats itself."""
    values = np.asarray(errors, dtype=np.float64)
    for axis in range(values.ndim):
        size = values.shape[axis]
        before = values.take(np.maximum(np.arange(size) - 1, 0), axis=axis)
        after = values.take(np.minimum(np.arange(size) + 1, size - 1), axis=axis)
        values = (before + 2 * values + after) / 4
    return values


def _fits(weights: CombinationWeights, name: str, value: float) -> bool:
    """Whether eq. 2 allows this weight beside the others."""
    sums = {"alpha": weights.beta, "beta": weights.alpha}
    return name not in sums or sums[name] + value <= 1


def _best(
    axes: Sequence[tuple[str, Sequence[float]]],
    start: CombinationWeights,
    errors_of: Callable[[CombinationWeights], int],
    progress: Callable[[float], None],
) -> CombinationWeights:
    """The point of a full grid whose error count, averaged with its neighbours, is least."""
    names = [name for name, _ in axes]
    points = list(itertools.product(*(values for _, values in axes)))
    errors = np.zeros(len(points))
    for index, point in enumerate(points):
        values: dict[str, Any] = dict(zip(names, point, strict=True))
        errors[index] = errors_of(replace(start, **values))
        progress(1 / len(points))
    averaged = smoothed(errors.reshape([len(values) for _, values in axes])).reshape(-1)
    # Where the data does not tell points apart, the one nearest to the start (in steps of the grid) is kept.
    here = [int(np.abs(np.asarray(values) - getattr(start, name)).argmin()) for name, values in axes]
    places = itertools.product(*(range(len(values)) for _, values in axes))
    moved = [sum(abs(at - was) for at, was in zip(place, here, strict=True)) for place in places]
    least = min(np.flatnonzero(averaged <= averaged.min() + 1e-9).tolist(), key=lambda index: moved[index])
    chosen: dict[str, Any] = dict(zip(names, points[least], strict=True))
    return replace(start, **chosen)
