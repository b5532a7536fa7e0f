"""Choices on development lists."""

from __future__ import annotations

from dataclasses import replace

from examples.liu_2020.adaptation import Method, baseline
from examples.liu_2020.lists import listeners
from examples.liu_2020.rows import (
    ALL,
    FOLLOWING,
    POSTERIOR,
    YARDSTICK,
    Grid,
    adaptation_errors,
    choose,
    extend,
    tuned_baseline,
    tuned_marginals,
)
from rescoring.combination import CombinationWeights
from tests.examples.liu_2020.made import WORDS, background, client

CLIENTS = listeners([client(f"A{number}a", number, utterances=24) for number in range(2)], WORDS)
BACKGROUND = background()
SMALL = Grid(
    {"language_model": (0.3, 0.6), "word_bonus": (0.0,)}, {"marginal": (0.0, 0.5, 1.0, 2.0), "smoothing": (2.0, 20.0)}
)


def test_a_lucky_point_does_not_win() -> None:
    errors = {0: 50, 1: 20, 2: 50, 3: 31, 4: 30, 5: 31}
    assert choose({"at": tuple(errors)}, lambda point: errors[point["at"]]) == {"at": 4}


def test_the_baseline_is_tuned_first_and_marginals_do_not_change_it() -> None:
    plain = tuned_baseline(CLIENTS, SMALL)
    tuned = tuned_marginals(CLIENTS, BACKGROUND, replace(plain, refresh="round"), SMALL, 3)
    assert replace(tuned, marginal=0.5, smoothing=20.0, refresh="utterance") == plain
    adapted = adaptation_errors(CLIENTS, BACKGROUND, Method(tuned), 3)
    assert adapted < sum(int(errors.sum()) for errors in baseline(CLIENTS, plain))


def test_what_does_not_earn_its_place_is_left_out() -> None:
    start = CombinationWeights(sigma=5.0, marginal=1.0, smoothing=5.0, refresh="round")
    methods, errors = extend(CLIENTS, BACKGROUND, start, 2)
    assert list(methods) == [FOLLOWING, POSTERIOR, ALL, YARDSTICK]
    assert [name for name, how in methods.items() if how.ranks == "errors"] == [YARDSTICK]
    assert errors[YARDSTICK] <= errors[FOLLOWING], "better counts, chosen weights"
    whole = methods[ALL].weights
    assert bool(whole.posterior_scale) == (errors[POSTERIOR] < errors[FOLLOWING])
    assert whole.language_model == start.language_model and whole.word_bonus == start.word_bonus
