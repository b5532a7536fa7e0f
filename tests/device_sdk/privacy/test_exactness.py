"""The samplers against the distributions that they claim, exactly: every course that a draw can take, each with its
probability as a fraction, and nothing estimated from draws."""

import math
import secrets
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from device_sdk.privacy import samplers
from device_sdk.privacy.samplers import discrete_laplace, discrete_laplaces

RAREST = Fraction(1, 1 << 14)
"""Courses less likely than this are left: their probabilities together bound what may be missing."""


class Undecided(Exception):
    """A draw asks for an integer below ``limit`` beyond the choices that are given."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit


def courses(draw: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[int, Fraction], Fraction]:
    """(value -> probability of the courses that end in it, probability of the courses that were left)."""
    given: list[int] = []
    position = 0

    def chosen(limit: int) -> int:
        nonlocal position
        if limit == 1:
            return 0
        if position == len(given):
            raise Undecided(limit)
        position += 1
        return given[position - 1]

    monkeypatch.setattr(samplers, "_one_below", lambda limit, _source: chosen(limit))
    monkeypatch.setattr(samplers, "_below", lambda limit, size, _source: np.array([chosen(limit) for _ in range(size)]))
    found: defaultdict[int, Fraction] = defaultdict(Fraction)
    left = Fraction(0)
    open_courses: list[tuple[tuple[int, ...], Fraction]] = [((), Fraction(1))]
    while open_courses:
        choices, chance = open_courses.pop()
        if chance < RAREST:
            left += chance
            continue
        given[:], position = choices, 0
        try:
            found[draw()] += chance
        except Undecided as more:
            open_courses += [((*choices, each), chance / more.limit) for each in range(more.limit)]
    return dict(found), left


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 1), (1, 3), (2, 3), (3, 2), (5, 2)])
@pytest.mark.parametrize("vector", [False, True])
def test_a_coin_of_chance_e_to_a_fraction(numerator: int, denominator: int, vector: bool, monkeypatch: Any) -> None:
    def flip() -> int:
        if vector:
            return int(samplers._bernoulli_exps(np.array([numerator]), denominator, secrets.token_bytes)[0])
        return int(samplers._bernoulli_exp(numerator, denominator, secrets.token_bytes))

    found, left = courses(flip, monkeypatch)
    heads, exact = float(found.get(1, 0)), math.exp(-numerator / denominator)
    assert left < Fraction(1, 20) and heads - 1e-15 <= exact <= heads + float(left) + 1e-15
    assert sum(found.values()) + left == 1


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(2), Fraction(1, 2)], ids=str)
@pytest.mark.parametrize("vector", [False, True])
def test_every_course_of_a_draw(scale: Fraction, vector: bool, monkeypatch: Any) -> None:
    """No value is likelier than it should be, and what they lack together is the chance of the courses left."""
    found, left = courses(
        lambda: int(discrete_laplaces(1, scale)[0]) if vector else discrete_laplace(scale), monkeypatch
    )
    weights = {value: math.exp(-abs(value) / scale) for value in range(-200, 201)}
    total = sum(weights.values())
    missing = [weight / total - float(found.get(value, 0)) for value, weight in weights.items()]
    assert left < Fraction(1, 4) and min(missing) > -1e-12 and sum(missing) == pytest.approx(float(left), abs=1e-9)
