"""What the guard decides, from costs alone: harm is found, chance is not mistaken for it."""

import math
from collections.abc import Sequence
from functools import partial, reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import StateError
from device_sdk.hypothesis import Hypothesis, Scores
from device_sdk.learning import GuardSettings, guard
from device_sdk.learning.candidates import Heard
from device_sdk.learning.guard import Comparison, Reading, Watch, capital, compare, divergence, harm, watch_one
from device_sdk.learning.memory import Example

SETTINGS = GuardSettings()
RIGHT, WRONG = "turn on the light", "one two three four"


def heard(*texts: str, sure: float = 1.0) -> Heard:
    """An n-best list whose first entry has the share ``sure`` and whose others share the rest."""
    shares = [sure, *[(1 - sure) / max(1, len(texts) - 1)] * (len(texts) - 1)]
    return Heard(texts, tuple((at + 1,) for at in range(len(texts))), tuple(math.log(share) for share in shares))


def example(text: str = RIGHT) -> Example:
    nbest = (Hypothesis((1,), text, (), Scores(acoustic=0.0), 0.0),)
    return Example("id", np.zeros((3, 4), np.float32), nbest, None, 0.0)


def no_feedback(example: Example, texts: Sequence[str]) -> None:
    return None


@pytest.mark.parametrize(
    ("local", "base", "costs", "expected"),
    [
        (heard(RIGHT), heard(RIGHT), {RIGHT: 0.0}, (0.0, None)),
        (heard(WRONG), heard(RIGHT), {RIGHT: 0.0, WRONG: 1.0}, (1.0, None)),
        (heard(RIGHT), heard(WRONG), {RIGHT: 0.0, WRONG: 1.0}, (-1.0, None)),  # confirmed: no drift, however far it is
        (heard(WRONG), heard(RIGHT), None, (None, 1.0)),
        (heard(RIGHT, WRONG, sure=0.75), heard(RIGHT, WRONG, sure=0.5), {RIGHT: 0.0, WRONG: 1.0}, (-0.25, None)),
        (Heard((), (), ()), heard(RIGHT), None, (None, None)),
    ],
)
def test_two_models_on_one_utterance(local: Heard, base: Heard, costs, expected) -> None:
    price = no_feedback if costs is None else lambda example, texts: [costs[text] for text in texts]
    found = compare(example(), local, base, base, price)
    assert (found.feedback, found.drift) == tuple(None if value is None else pytest.approx(value) for value in expected)


def test_the_less_sure_the_proven_model_the_less_it_costs_to_leave_it() -> None:
    bases = [heard(RIGHT, WRONG, sure=sure) for sure in (0.99, 0.8, 0.6, 0.5)]
    drifts = [compare(example(), heard(WRONG), base, base, no_feedback).drift for base in bases]
    assert drifts[0] == pytest.approx(0.99 - 2 * 0.99 * 0.01) and drifts == sorted(drifts, reverse=True)
    assert drifts[-1] == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([Comparison(feedback=0.0)] * 3, 3),
        ([Comparison(feedback=0.0)] * 3 + [Comparison(drift=1.0), Comparison()], 3),
        ([Comparison(feedback=0.0)] * 3 + [Comparison(feedback=1.0)], 0),
        ([Comparison(feedback=1.0), Comparison(feedback=0.0)], 0),  # what was held against it still counts
        ([Comparison(feedback=1.0)] + [Comparison(feedback=-1.0)] * 2, 2),
    ],
)
def test_a_model_is_proven_by_what_feedback_confirmed_in_a_row(seen: list[Comparison], expected: int) -> None:
    assert reduce(partial(watch_one, settings=SETTINGS), seen, Watch()).confirmed == expected


@given(st.lists(st.floats(-1.0, 1.0), max_size=30), st.floats(0.0, 0.3), st.floats(0.01, 0.75))
def test_nobody_loses_more_than_there_is(differences: list[float], tolerance: float, bet: float) -> None:
    assert capital(differences, tolerance, bet) > 0.0


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.floats(0.0, 1.0), st.floats(0.05, 0.3))
def test_a_bet_on_what_is_tolerated_is_at_most_fair(one: float, other: float, share: float, tolerance: float) -> None:
    """Over any two outcomes of a mean of at most the tolerance, the expected capital is at most 1."""
    if share * one + (1 - share) * other <= tolerance:
        assert share * capital([one], tolerance, 0.75) + (1 - share) * capital([other], tolerance, 0.75) <= 1.0 + 1e-12


def alarms(differences: np.ndarray, kind: str) -> np.ndarray:
    """[streams, utterances] -> when each stream's alarm came, NaN for never."""
    when = np.full(len(differences), np.nan)
    for stream, values in enumerate(differences):
        watch = Watch()
        for number, value in enumerate(values):
            watch = watch_one(watch, Comparison(**{kind: float(value)}), SETTINGS)
            if harm(watch, SETTINGS) is not None:
                when[stream] = number + 1
                break
    return when


@pytest.mark.parametrize("kind", ["feedback", "drift"])
def test_false_alarms_are_rarer_than_the_doubt(kind: str) -> None:
    """100 streams of 300 utterances at the very edge of what is tolerated: doubt allows one alarm in 100."""
    rng = np.random.default_rng(0)
    edge = SETTINGS.tolerance if kind == "feedback" else SETTINGS.drift
    for spread in (0.2, 0.7):
        found = alarms(np.clip(edge + spread * rng.choice((-1.0, 1.0), (100, 300)), -1.0, 1.0), kind)
        seen = np.nansum(np.where(np.isnan(found), 300, found))
        assert np.isfinite(found).sum() <= SETTINGS.doubt * seen + 3.0 * math.sqrt(SETTINGS.doubt * seen)


@pytest.mark.parametrize(("kind", "mean", "within"), [("feedback", 0.5, 30), ("drift", 0.8, 30), ("feedback", 0.2, 90)])
def test_harm_is_found(kind: str, mean: float, within: int) -> None:
    found = alarms(np.clip(mean + 0.3 * np.random.default_rng(1).standard_normal((50, 500)), -1.0, 1.0), kind)
    assert np.isfinite(found).all() and np.median(found) <= within


def test_harm_after_a_long_good_time_is_found_as_soon() -> None:
    seen = [Comparison(feedback=-0.3)] * 5000 + [Comparison(feedback=0.6)] * 20
    watch = reduce(partial(watch_one, settings=SETTINGS), seen, Watch())
    assert harm(watch, SETTINGS) == "by the feedback, it serves worse than the published model"


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        ([], None),
        ([Comparison()] * 12, None),
        ([Comparison(feedback=0.0)] * 6 + [Comparison(drift=0.0)] * 6, None),
        ([Comparison(feedback=-1.0)] * 12, None),
        ([Comparison(feedback=1.0)] * 3, None),
        ([Comparison(feedback=0.8)] * 12, "12 withheld utterances are served worse than before, by the feedback"),
        ([Comparison(drift=0.7)] * 12, "by the proven model"),
        ([Comparison(feedback=0.8)] * 3 + [Comparison(feedback=-0.8)] * 3, None),
    ],
)
def test_what_withheld_utterances_tell(seen: list[Comparison], named: str | None) -> None:
    found = guard.harm_withheld(seen, SETTINGS)
    assert found is None if named is None else named in str(found)


WRONG_WATCHES = map(guard.to_bytes, (Watch(served=-1.0), Watch(drift=math.nan)))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", *WRONG_WATCHES])
def test_damaged_records_are_refused(content: bytes) -> None:
    watch = Watch(2.5, 1.0, 4, 3)
    assert (guard.from_bytes(guard.to_bytes(watch)), guard.from_bytes(None)) == (watch, Watch())
    with pytest.raises(StateError, match="settings/guard"):
        guard.from_bytes(content)


FINE = Reading(10, 10, 0.5)


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ([], False),
        ([FINE] * 4, False),
        ([Reading(2, 10, -5.0)] * 3, False),
        ([Reading(2, 10, -5.0)] * 4, True),
        ([Reading(0, 10, -5.0)] * 4, True),
        ([Reading(30, 10, -5.0)] * 4, True),
        ([Reading(2, 10, 5.0)] * 4, False),  # shorter, and more likely
        ([Reading(10, 10, -50.0)] * 4, False),  # other words, as many
        ([Reading(2, 10, -math.inf), FINE, FINE, Reading(2, 10, -1.0)], True),
        ([Reading(2, 10, -5.0)] * 9 + [FINE] * 4, False),
        ([FINE] * 9 + [Reading(2, 10, -5.0)] * 4, True),
        ([Reading(0, 0, 0.0)] * 4, False),  # nobody spoke
    ],
)
def test_divergence_of_self_learning_is_read_from_its_labels(readings, found: bool) -> None:
    why = divergence(readings, guard.DivergenceSettings(window=4))
    assert why.startswith("labels drift: over 4 utterances") if found else why is None
