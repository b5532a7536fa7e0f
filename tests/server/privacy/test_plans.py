"""Plans of federations: the paper's own extrapolations, and what must hold of any."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from device_sdk.errors import PrivacyError
from device_sdk.privacy.gaussian import gaussian_epsilon
from server.commands import privacy
from server.privacy.sampled_gaussian import (
    Plan,
    amplified,
    extrapolated,
    judge,
    needed_scale,
    published_rows,
    rdp_epsilon,
    unamplified,
)

TABLE_2 = Plan(34_753, 1_024, 2_006, 0.003072, 1e-9)


def test_table_2_is_extrapolated_as_printed() -> None:
    """sigma = 3e-8: 100 times the cohort, 200 times, then ten times the population."""
    rows = [row for row in published_rows() if row.table == 2 and row.sigma == pytest.approx(3e-8)]
    printed = {(row.cohort, row.population): row for row in rows}
    assert len(printed) >= 4
    for plan in extrapolated(TABLE_2, (100, 200), (10,))[1:]:
        row = printed[plan.cohort, plan.population]
        assert plan.noise_multiplier == pytest.approx(row.noise_multiplier)
        epsilon, _ = rdp_epsilon(plan)
        assert epsilon <= judge(row).best * (1 + 1e-9)
        assert epsilon == pytest.approx(row.epsilon, rel=0.15)


@given(scale=st.floats(1.5, 300.0))
@settings(max_examples=10, deadline=None)
def test_more_users_cost_each_less(scale: float) -> None:
    """At the same noise of the mean update over the bound."""
    plan = Plan(10_000, 100, 200, 0.3, 1e-6)
    larger = plan.scaled(scale, scale)
    assert larger.noise_multiplier / larger.cohort == pytest.approx(0.3 / 100, rel=0.01)
    assert larger.sampling == pytest.approx(plan.sampling, rel=0.01)
    one, other = (rdp_epsilon(each)[0] for each in (plan, larger))
    assert other < one


def test_pld_is_tighter_and_sampling_amplifies() -> None:
    plan = Plan(1_000, 10, 50, 1.0, 1e-6)
    found = amplified(plan)
    assert 0 < found["pld"] < found["rdp"] < unamplified(plan, 50)
    assert unamplified(plan, 50) == gaussian_epsilon(math.sqrt(50), 1e-6)
    assert amplified(plan, pld=False)["pld"] is None
    assert rdp_epsilon(Plan(1, 1, 50, 1.0, 1e-6))[0] >= unamplified(plan, 50)


def test_needed_scale() -> None:
    plan = Plan(10_000, 100, 200, 0.3, 1e-6)
    scale = needed_scale(plan, 2.0)
    assert scale is not None
    for factor, enough in ((1.0, True), (0.97, False)):
        epsilon, _ = rdp_epsilon(plan.scaled(scale * factor, scale * factor))
        assert (epsilon <= 2.0) is enough
    assert needed_scale(plan, 1e12) == 1.0
    assert needed_scale(plan, 1e-3) is None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((10, 11, 1, 1.0, 0.1), "cohort"),
        ((10, 0, 1, 1.0, 0.1), "cohort"),
        ((10, 1, 0, 1.0, 0.1), "rounds"),
        ((10, 1, 1, 0.0, 0.1), "noise"),
        ((10, 1, 1, math.nan, 0.1), "noise"),
        ((10, 1, 1, 1.0, 1.0), "delta"),
    ],
)
def test_impossible_plans(values: tuple[int, int, int, float, float], named: str) -> None:
    with pytest.raises(PrivacyError, match=named):
        Plan(*values)


def test_the_command() -> None:
    words = ["plan", "10000", "--cohort", "100", "--rounds", "50", "--noise", "1", "--delta", "1e-6", "--no-pld"]
    words += ["--scales", "10", "--populations", "10"]
    first, *larger = json.loads(CliRunner().invoke(privacy.app, [*words, "--json"]).stdout)["rows"]
    assert [(row["cohort"], row["population"]) for row in larger] == [(1000, 100_000), (1000, 1_000_000)]
    assert first["rdp_epsilon"] == rdp_epsilon(Plan(10_000, 100, 50, 1.0, 1e-6))[0] and first["pld_epsilon"] is None
    assert [row["extrapolated"] for row in (first, *larger)] == [False, True, True]
    shown = CliRunner().invoke(privacy.app, words)
    assert "Poisson" in shown.stdout and "10,000" in shown.stdout
    failed = CliRunner().invoke(privacy.app, [*words, "--scales", "1,x"])
    assert "--scales" in str(failed.exception)
