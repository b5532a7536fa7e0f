"""Plans whose rounds together cost what is wanted."""

from __future__ import annotations

import pytest

from device_sdk.errors import PrivacyError
from device_sdk.wire.messages import MarginalPlan
from server.plans.round import RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose
from server.privacy.costs import calibrated


@pytest.mark.parametrize("mechanism", ["discrete_laplace", "discrete_gaussian"])
@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 1), (1.0, 10), (8.0, 10), (2.0, 300)])
def test_rounds_cost_what_is_wanted(mechanism: str, epsilon: float, rounds: int) -> None:
    plan = calibrated(MarginalPlan.model_validate({"mechanism": mechanism}), epsilon, rounds)
    spent = compose(Spent({charge_for("marginals", RoundSettings(marginals=plan)): rounds}), plan.delta)[0]
    assert 0.985 * epsilon < spent <= epsilon


def test_what_cannot_be_calibrated_is_named() -> None:
    with pytest.raises(PrivacyError, match="mode: found paper"):
        calibrated(MarginalPlan(mode="paper"), 1.0, 10)
    with pytest.raises(PrivacyError, match="user_epsilon"):
        calibrated(MarginalPlan(), 0.0, 10)
