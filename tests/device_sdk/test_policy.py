"""Which conditions let a device work."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import CarefulPolicy, Conditions, ConfigurationError
from device_sdk.policy import Work

WORK: tuple[Work, ...] = ("learn", "check in")


@pytest.mark.parametrize(
    ("conditions", "learn", "check_in"),
    [
        (Conditions(), None, None),
        (Conditions(charging=True, idle=True, temperature=31.0, metered=False, battery=0.9), None, None),
        (Conditions(idle=False), "in use", None),
        (Conditions(metered=True), None, "metered"),
        (Conditions(temperature=40.0), None, None),
        (Conditions(temperature=43.2, charging=True), "43 degrees warm, above 40", None),
        (Conditions(battery=0.29), "battery is at 29%, below 30%", "battery is at 29%"),
        (Conditions(battery=0.29, charging=False), "not charging", "not charging"),
        (Conditions(battery=0.01, charging=True), None, None),
        (Conditions(battery=0.3), None, None),
        (Conditions(charging=False), None, None),
    ],
)
def test_what_the_careful_policy_says(conditions: Conditions, learn: str | None, check_in: str | None) -> None:
    for work, expected in zip(WORK, (learn, check_in), strict=True):
        found = CarefulPolicy()(work, conditions)
        assert (found is None) == (expected is None), (work, found)
        assert expected is None or expected in str(found)


def test_its_choices() -> None:
    assert CarefulPolicy(when_charging=True)("learn", Conditions(charging=False)) == "it is not charging"
    assert CarefulPolicy(when_charging=True)("learn", Conditions()) is None
    assert CarefulPolicy(when_idle=False)("learn", Conditions(idle=False)) is None
    assert CarefulPolicy(on_metered=True)("check in", Conditions(metered=True)) is None
    assert CarefulPolicy(lowest_battery=0.0)("learn", Conditions(battery=0.0)) is None


FLAGS = st.sampled_from((None, True, False))
ANY = st.builds(Conditions, FLAGS, FLAGS, st.none() | st.floats(-40.0, 90.0), FLAGS, st.none() | st.floats(0.0, 1.0))


@given(ANY)
def test_better_conditions_are_never_worse(conditions: Conditions) -> None:
    """Charging, at rest, cool, full and on a free network, everything that could be refused is done."""
    best = Conditions(True, True, min(conditions.temperature or 0.0, 20.0), False, 1.0)
    for work in WORK:
        assert CarefulPolicy(when_charging=True)(work, best) is None
        why = CarefulPolicy()(work, conditions)
        assert why is None or CarefulPolicy(False, False, 0.0, math.inf, True)(work, conditions) is None


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Conditions(battery=1.2), "conditions.battery: found 1.2"),
        (lambda: Conditions(battery=math.nan), "conditions.battery"),
        (lambda: Conditions(temperature=math.inf), "conditions.temperature"),
        (lambda: CarefulPolicy(lowest_battery=-0.1), "policy.lowest_battery"),
        (lambda: CarefulPolicy(highest_temperature=math.nan), "policy.highest_temperature"),
    ],
)
def test_impossible_values_are_named(make, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()
