"""Search of the combination weights that make the fewest word errors on development lists."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from device_sdk.personalization import cache as caches
from rescoring.combination import CombinationWeights, order
from rescoring.marginals import personal_unigram, weighted_counts
from rescoring.words import WordList
from server.lab.tuning.lists import DevelopmentLists

Array = NDArray[np.float64]
Axes = Mapping[str, Sequence[float]]
"""Values to try of each weight, rising."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Values that are tried for each weight, rising."""

    language_model: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    ngram_share: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    word_bonus: tuple[float, ...] = (-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
    unlisted_bonus: tuple[float, ...] = (-3.0, -2.0, -1.0, 0.0)
    marginal: tuple[float, ...] = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    smoothing: tuple[float, ...] = (1.0, 5.0, 20.0, 100.0, 500.0)
    alpha: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)
    beta: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 0.75)
    sigma: tuple[float, ...] = (0.1, 0.5, 1.0, 2.0, 5.0)
    ctc: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2)


FIRST_PASSES = ((0.0, 0.0), (0.15, 0.5), (0.3, 0.8), (0.45, 1.2))
"""``search_ngram`` and ``search_bonus`` that are tried: the larger the one, the more a piece must get back."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """weights: the choice. rates: word error by stage: ``first_pass``, ``rescored``, ``marginals``, ``oracle``. edges:
    weights that are the last of the values that were tried, though others are possible beyond: the grid is too small.
    """

    weights: CombinationWeights
    rates: dict[str, float]
    edges: tuple[str, ...]


def tune(
    lists: DevelopmentLists,
    start: CombinationWeights,
    words: WordList,
    background: Array,
    grid: Grid = Grid(),
    progress: Callable[[float], None] = lambda share: None,
) -> Tuned:
    """Choose language-model, word and marginal weights, beginning at ``start``. First the weights without adaptation,
    on their full grid; then lambda, the smoothing and the language models' weight (by which lambda counts) around what
    was chosen, with each speaker's cache simulated in the order of the utterances (``marginal_errors``); then beta,
    alpha and sigma one after the other, with what the other speakers of a source say as the global distribution. The
    choice is the least error averaged with its neighbours on the grid, so that a single lucky point does not win; every
    source counts the same. progress: called with each further share done."""
    shares = grid.ngram_share if lists.neural is not None and lists.ngram is not None else (start.ngram_share,)
    axes: Axes = {
        "language_model": grid.language_model,
        "ngram_share": shares,
        "ctc": grid.ctc if lists.ctc.any() else (start.ctc,),
        "word_bonus": grid.word_bonus,
        "unlisted_bonus": grid.unlisted_bonus,
    }
    chosen = best(axes, start, lists.word_error, lambda _, all_: progress(0.3 / all_))
    rates = {"first_pass": lists.first_pass_error, "rescored": lists.word_error(chosen)}
    others = others_marginals(lists, chosen, words, background)

    def simulate(weights: CombinationWeights) -> float:
        return lists.rate(marginal_errors(lists, weights, words, background, others))

    near = grid.language_model.index(chosen.language_model)
    axes = {
        "language_model": grid.language_model[max(0, near - 1) : near + 2],
        "marginal": grid.marginal,
        "smoothing": grid.smoothing,
    }
    chosen = best(axes, chosen, simulate, lambda _, all_: progress(0.5 / all_))
    for name in ("beta", "alpha", "sigma"):
        if name != "alpha" or others:  # without others there is no global distribution
            rest = {"beta": chosen.alpha, "alpha": chosen.beta, "sigma": -np.inf}[name]  # eq. 2: at most 1 in all
            axis = [value for value in getattr(grid, name) if value + rest <= 1]
            chosen = best({name: axis}, chosen, simulate)
        progress(0.2 / 3)
    rates |= {"marginals": simulate(chosen), "oracle": lists.oracle_error}
    return Tuned(chosen, rates, edges(grid, chosen))


def edges(grid: Grid, chosen: CombinationWeights) -> tuple[str, ...]:
    """The weights that lie at an edge of the grid which is none of what is possible: 0, a whole share, or in alpha and
    beta the rest of it."""

    def cut(name: str) -> bool:
        values, value = getattr(grid, name), getattr(chosen, name)
        shares = {"ngram_share": chosen.ngram_share, **dict.fromkeys(("alpha", "beta"), chosen.alpha + chosen.beta)}
        lowest = value == min(values) and (value != 0.0 or name.endswith("_bonus"))
        return len(values) > 1 and (lowest or (value == max(values) and shares.get(name, 0.0) < 1.0))

    return tuple(each.name for each in fields(Grid) if cut(each.name))


def marginal_errors(
    lists: DevelopmentLists,
    weights: CombinationWeights,
    words: WordList,
    background: Array,
    others: Mapping[str, Array] | None = None,
) -> NDArray[np.int64]:
    """Word errors of each utterance [U] when every speaker's device adapts to what it recognized before. Predict, then
    learn: an utterance is rescored with its speaker's cache as it was, then counted as the device counts it: by its
    n-best list in the order of the second pass or, where slots are labelled, by what they confirm. others: speaker ->
    the global distribution [n] (``others_marginals``); the background where there is none: a lone device."""
    memory: dict[str, caches.MarginalCache] = {}
    errors = np.zeros(len(lists), dtype=np.int64)
    for index, speaker in enumerate(lists.speakers):
        cache = memory.get(speaker, caches.empty(words))
        marginal = caches.personal_marginal(cache, words, background, (others or {}).get(speaker), weights)
        totals = lists.adapted(index, weights, marginal.scores(lists.ids[index]))
        ranking = order(totals)
        errors[index] = lists.errors[index, ranking[0]]
        nbest, confirmed = [lists.texts[index][entry] for entry in ranking], lists.confirmed[index]
        memory[speaker] = caches.update(
            cache, caches.count_words(nbest if confirmed is None else confirmed, words, weights)
        )
    return errors


def others_marginals(
    lists: DevelopmentLists, weights: CombinationWeights, words: WordList, background: Array
) -> dict[str, Array]:
    """speaker -> what a server would publish of the other speakers of its source (Liu & Peng 2020, eq. 6, without
    noise). Counted by rank in the order of the second pass without adaptation. Who is alone in a source is left out."""
    totals, counts = lists.totals(weights), dict[tuple[str, str], Array]()
    for index, place in enumerate(zip(lists.sources, lists.speakers, strict=True)):
        ranking = order(totals[index, : len(lists.ids[index])])
        said = weighted_counts([lists.ids[index][entry] for entry in ranking], weights.sigma, len(words))
        counts[place] = counts.get(place, np.zeros(len(words))) + said
    others = {}
    for source, speaker in counts:
        rest = [each for place, each in counts.items() if place[0] == source and place[1] != speaker]
        if rest:
            others[speaker] = personal_unigram(np.sum(rest, axis=0), background, weights.smoothing)
    return others


def smoothed(errors: Array) -> Array:
    """Every point of a grid of errors averaged with its neighbours, axis by axis; the edge repeats itself."""
    values = np.asarray(errors, dtype=np.float64)
    for axis in range(values.ndim):
        size = values.shape[axis]
        before = values.take(np.maximum(np.arange(size) - 1, 0), axis=axis)
        values = (before + 2 * values + values.take(np.minimum(np.arange(size) + 1, size - 1), axis=axis)) / 4
    return values


def best(
    axes: Axes,
    start: CombinationWeights,
    error_of: Callable[[CombinationWeights], float],
    tell: Callable[[int, int], None] = lambda *_: None,
) -> CombinationWeights:
    """The point of a full grid whose error, averaged with its neighbours', is least. tell: called with (points
    that were tried, all)."""
    points = [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]
    weights = [replace(start, **cast("dict[str, Any]", point)) for point in points]
    errors: list[float] = []
    for each in weights:
        errors.append(error_of(each))
        tell(len(errors), len(points))
    averaged = smoothed(np.reshape(errors, [len(values) for values in axes.values()])).reshape(-1)
    # Where the data does not tell points apart, the one nearest to the start (in steps of the grid) is kept.
    here = [int(np.abs(np.asarray(values) - getattr(start, name)).argmin()) for name, values in axes.items()]
    places = itertools.product(*(range(len(values)) for values in axes.values()))
    moved = [sum(abs(at - was) for at, was in zip(place, here, strict=True)) for place in places]
    least = min(np.flatnonzero(averaged <= averaged.min() + 1e-9).tolist(), key=lambda index: moved[index])
    return weights[least]
