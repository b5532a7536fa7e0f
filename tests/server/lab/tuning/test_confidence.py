"""The fit against truth it was made from, against scipy's optimum, and its figures for other voices."""

from collections.abc import Sequence
from dataclasses import astuple
from functools import cache

import numpy as np
import pytest

from device_sdk.errors import DataError
from device_sdk.hypothesis import Hypothesis, Scores, Word
from rescoring.combination import Calibration, Curve, confidence
from server.lab.corpora.utterance import Utterance
from server.lab.tuning.confidence import SCALES, Heard, _logistic, fit_and_check, hear

TRUTH = Curve(0.6, 0.4, 0.3, 0.5)


def hypothesis(text: str, score: float, acoustic: float) -> Hypothesis:
    words = tuple(Word(word, 0.3 * place, 0.3 * place + 0.2) for place, word in enumerate(text.split()))
    return Hypothesis((), text, words, Scores(acoustic), score)


@cache
def made(count: int = 4000, source: str = "made", seed: int = 0) -> tuple[Heard, ...]:
    """Lists of two that differ in their last word; whether that is right follows ``TRUTH``, other words are right."""
    generator = np.random.default_rng(seed)
    found = []
    for place in range(count):
        length = int(generator.integers(1, 4))
        share, covered = generator.uniform(0.5, 0.999), -float(generator.exponential(3.0))
        start, gap = "a " * (length - 1), float(np.log(share / (1 - share)))
        acoustic = covered - float(np.log(2))
        listed = (hypothesis(start + "b", gap, acoustic), hypothesis(start + "c", 0.0, acoustic))
        hit = bool(generator.uniform() < confidence(TRUTH, np.array([share]), covered, length)[0])
        found.append(Heard(source, f"v{place % 10}", listed, (*[hit] * (length - 1), hit), hit))
    return tuple(found)


def fit(heard: Sequence[Heard], scales: Sequence[float] = SCALES) -> Calibration:
    return fit_and_check(heard, scales).calibration


def test_the_truth_and_the_best_scale_are_found_again() -> None:
    found = fit(made(), scales=(0.2, 1.0))
    assert astuple(found.text) == pytest.approx(astuple(TRUTH), abs=0.15) and found.scale == 1.0


def test_figures_before_after_and_of_other_voices() -> None:
    fitted = fit_and_check(made(1500), scales=(0.5, 1.0))
    assert fitted.before["texts"].ece > 0.1 and fitted.after["texts"].ece < 0.04
    assert fitted.other_voices["texts"].ece < 0.05
    after, others = fitted.after["texts"].nce, fitted.other_voices["texts"].nce
    assert after is not None and others is not None and 0.1 < others <= after
    assert len(fitted.before["words"].right) == sum(len(each.right) for each in made(1500))


def test_lists_of_one_have_curves_of_their_own() -> None:
    generator = np.random.default_rng(2)
    alone = []
    for place in range(3000):
        acoustic = -float(generator.exponential(4.0))
        hit = bool(generator.uniform() < 1 / (1 + np.exp(-(2.0 + 0.5 * acoustic))))
        alone.append(Heard("made", f"v{place % 10}", (hypothesis("a", 0.0, acoustic),), (hit,), hit))
    fitted = fit_and_check([*made(1500), *alone], scales=(1.0,))
    curves, alike = fitted.calibration, fit(made(1500), scales=(1.0,))
    assert (curves.word, curves.text) == (alike.word, alike.text) and curves.greedy_word.slope == 0
    assert confidence(curves.greedy_word, np.array([1.0]), -2.0, 1)[0] == pytest.approx(1 / (1 + np.exp(-1)), abs=0.04)
    assert fitted.before["greedy words"].ece > 0.2 and fitted.other_voices["greedy words"].ece < 0.05
    assert fit(alone).word == Curve()


def test_every_source_counts_the_same() -> None:
    wrong = tuple(Heard("other", "w", (hypothesis("a", 0.0, -1.0),), (False,), False) for _ in range(100))
    right = tuple(Heard("sure", "v", (hypothesis("a", 0.0, -1.0),), (True,), True) for _ in range(2000))
    found = fit([*wrong, *right], scales=(1.0,))
    assert confidence(found.greedy_word, np.array([1.0]), -1.0, 1)[0] == pytest.approx(0.5, abs=0.05)


def test_posteriors_that_say_the_opposite_are_not_believed() -> None:
    rows = np.column_stack([np.linspace(-3, 3, 100), np.ones(100), np.zeros(100), np.zeros(100)])
    curve, _ = _logistic(rows, (rows[:, 0] < 0).astype(np.float64), np.full(100, 0.01))
    assert curve.slope == 0.0


def test_hearing_sets_words_against_what_was_said_and_refuses_nothing_recognized() -> None:
    silence = np.zeros(100, np.float32)
    said = Utterance("1", "ann-x0.8", "a small b", None, True, lambda: silence)
    unsure = Utterance("2", "ann-x0.8", "a b", None, False, lambda: silence)
    listed = (hypothesis("a b", 0.0, -1.0), hypothesis("b", -1.0, -2.0))
    assert hear("made", [said, unsure], lambda _: listed) == [Heard("made", "ann", listed, (True, True), False)]
    with pytest.raises(DataError, match="no word was recognized"):
        fit([Heard("made", "v", (hypothesis("", 0.0, -1.0),), (), False)])
    assert Calibration() == Calibration.from_mapping({})
