"""What fails is tried again after growing pauses, and given up: soon where tries cannot mend it, else late."""

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from device_sdk.errors import PrivacyError, ProtocolError, StateError
from server.rounds.patience import LASTING, LONGEST_PAUSE, PASSING, Patience, Setbacks, describe_error, is_lasting

STORED = IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed"))
LOCKED = OperationalError("BEGIN", {}, Exception("database is locked"))


def given_up_after(error: Exception) -> tuple[int, float]:
    """(tries, seconds from the first to the last)."""
    now = 1000.0
    setbacks = Setbacks(lambda: now)
    tries = 1
    while not setbacks.failed("r1", error):
        while not setbacks.is_due("r1"):
            now += 0.25
        tries += 1
    return tries, now - 1000.0


@pytest.mark.parametrize(
    ("errors", "patience", "pause"),
    [
        ([STORED, ProtocolError("x"), PrivacyError("x"), ValueError("x"), KeyError("x")], LASTING, 5.0),
        ([LOCKED, StateError("x"), OSError(28, "No space left"), RuntimeError("x")], PASSING, LONGEST_PAUSE),
    ],
)
def test_what_tries_cannot_mend_is_given_up_soon(errors: list[Exception], patience: Patience, pause: float) -> None:
    for error in errors:
        tries, seconds = given_up_after(error)
        assert tries >= patience.tries and patience.seconds <= seconds <= patience.seconds + pause


def test_a_fault_that_passes_leaves_no_trace_and_does_not_count_for_another() -> None:
    now = 0.0
    setbacks = Setbacks(lambda: now)
    for _ in range(100):
        assert not setbacks.failed("r1", LOCKED)
        now += 61.0
    assert not setbacks.failed("r1", STORED), "a hundred tries of the other kind say nothing about this one"
    assert setbacks.holds("r1") and not setbacks.holds("r2")
    assert setbacks.is_due("r2"), "what failed holds nothing else up"
    assert setbacks.seconds_left == 1.0
    setbacks.passed("r1")
    assert setbacks.seconds_left == float("inf") and not setbacks.holds("r1") and setbacks.is_due("r1")
    setbacks.failed("r1", STORED)
    setbacks.keep(["r2"])
    assert not setbacks.holds("r1")


def test_of_several_errors_one_that_may_pass_decides() -> None:
    assert is_lasting(ExceptionGroup("both", [ValueError(), STORED]))
    assert not is_lasting(ExceptionGroup("both", [ValueError(), LOCKED]))


def test_operators_are_told_where_it_failed_and_not_on_what() -> None:
    try:
        int("17 teaspoons")
    except ValueError as error:
        assert describe_error(error).startswith("ValueError in test_patience.py:")
        assert "teaspoons" not in describe_error(error)
    assert describe_error(ProtocolError("shares: found 3")) == "ProtocolError: shares: found 3"
