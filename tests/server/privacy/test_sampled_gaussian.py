"""Plans of federations, and Pelikan et al. 2023's tables: Rényi accounting against dp-accounting where it converges."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from device_sdk import PrivacyError, cli
from device_sdk.privacy.gaussian import gaussian_epsilon
from server.commands import privacy
from server.privacy import sampled_gaussian as shipped

TABLE_2 = shipped.Plan(34_753, 1_024, 2_006, 0.003072, 1e-9)


def test_table_2_is_extrapolated_as_printed() -> None:
    """sigma = 3e-8: 100 times the cohort, 200 times, then ten times the population."""
    rows = [row for row in shipped.published_rows() if row.table == 2 and row.sigma == pytest.approx(3e-8)]
    printed = {(row.cohort, row.population): row for row in rows}
    for plan in shipped.extrapolated(TABLE_2, (100, 200), (10,))[1:]:
        row = printed[plan.cohort, plan.population]
        assert plan.noise_multiplier == pytest.approx(row.noise_multiplier)
        epsilon, _ = shipped.rdp_epsilon(plan)
        assert epsilon <= shipped.judge(row).best * (1 + 1e-9) and epsilon == pytest.approx(row.epsilon, rel=0.15)


@given(scale=st.floats(1.5, 300.0))
@settings(max_examples=10, deadline=None)
def test_more_users_cost_each_less(scale: float) -> None:
    """At the same noise of the mean update over the bound."""
    plan = shipped.Plan(10_000, 100, 200, 0.3, 1e-6)
    larger = plan.scaled(scale, scale)
    assert larger.noise_multiplier / larger.cohort == pytest.approx(0.3 / 100, rel=0.01)
    assert larger.sampling == pytest.approx(plan.sampling, rel=0.01)
    one, other = (shipped.rdp_epsilon(each)[0] for each in (plan, larger))
    assert other < one


def test_pld_is_tighter_and_sampling_amplifies() -> None:
    plan = shipped.Plan(1_000, 10, 50, 1.0, 1e-6)
    found = shipped.amplified(plan)
    assert 0 < found["pld"] < found["rdp"] < shipped.unamplified(plan, 50)
    assert shipped.unamplified(plan, 50) == gaussian_epsilon(math.sqrt(50), 1e-6)
    assert shipped.amplified(plan, pld=False)["pld"] is None
    assert shipped.rdp_epsilon(shipped.Plan(1, 1, 50, 1.0, 1e-6))[0] >= shipped.unamplified(plan, 50)


def test_needed_scale() -> None:
    plan = shipped.Plan(10_000, 100, 200, 0.3, 1e-6)
    scale = shipped.needed_scale(plan, 2.0) or 0.0
    less, enough = (shipped.rdp_epsilon(plan.scaled(scale * factor, scale * factor))[0] for factor in (0.97, 1.0))
    assert enough <= 2.0 < less
    assert shipped.needed_scale(plan, 1e12) == 1.0 and shipped.needed_scale(plan, 1e-3) is None


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((10, 11, 1, 1.0, 0.1), "cohort"),
        ((10, 0, 1, 1.0, 0.1), "cohort"),
        ((10, 1, 0, 1.0, 0.1), "rounds"),
        ((10, 1, 1, 0.0, 0.1), "noise"),
        ((10, 1, 1, 1e-160, 0.1), "noise"),
        ((10, 1, 1, math.nan, 0.1), "noise"),
        ((10, 1, 1, 1.0, 1.0), "delta"),
    ],
)
def test_impossible_plans(values: tuple[int, int, int, float, float], named: str) -> None:
    with pytest.raises(PrivacyError, match=named):
        shipped.Plan(*values)


def test_the_command() -> None:
    words = ["plan", "10000", "--cohort", "100", "--rounds", "50", "--noise", "1", "--delta", "1e-6", "--no-pld"]
    words += ["--scales", "10", "--populations", "10"]
    first, *larger = json.loads(CliRunner().invoke(privacy.app, [*words, "--json"]).stdout)["rows"]
    assert [(row["cohort"], row["population"]) for row in larger] == [(1000, 100_000), (1000, 1_000_000)]
    assert (
        first["rdp_epsilon"] == shipped.rdp_epsilon(shipped.Plan(10_000, 100, 50, 1.0, 1e-6))[0]
        and first["pld_epsilon"] is None
    )
    assert [row["extrapolated"] for row in (first, *larger)] == [False, True, True]
    shown = CliRunner().invoke(privacy.app, words)
    assert "Poisson" in shown.stdout and "10,000" in shown.stdout
    assert "--scales" in str(CliRunner().invoke(privacy.app, [*words, "--scales", "1,x"]).exception)


@given(st.integers(100, 10**6), st.floats(0.8, 20.0), st.integers(2, 32), st.integers(1, 5000))
def test_whole_orders_against_dp_accounting(cohort: int, z: float, order: int, rounds: int) -> None:
    accountant, plan = RdpAccountant(orders=[float(order)]), shipped.Plan(10**6, cohort, rounds, z, 1e-6)
    accountant.compose(PoissonSampledDpEvent(plan.sampling, GaussianDpEvent(z)), rounds)
    assert shipped.epsilon_at(plan, order) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-9, abs=1e-9)


def test_sixty_eight_of_seventy_four_rows_are_as_printed_and_the_others_are_named() -> None:
    rows = shipped.published_rows()
    assert Counter(row.table for row in rows) == {2: 19, 16: 41, 17: 14}
    assert [(row.table, verdict.misprint) for row in rows if (verdict := shipped.judge(row)).misprint] == [
        (2, "epsilon: printed 1.3, but order 4 gives 13"),
        (2, "order: printed 3, but epsilon 7.2 is that of order 4"),
        (16, "epsilon: printed 1.3, but order 4 gives 13"),
        (16, "order: printed 3, but epsilon 7.2 is that of order 4"),
        (17, "order: printed 1.3, but epsilon none (1.1e+07) is that of order 1.1"),
        (17, "order: printed 3, but epsilon none (1.8e+02) is that of order 1.5"),
    ]


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["privacy", "table", "--table", "2", "--no-pld", "--output", str(tmp_path / "t.json")]) == 0
    assert "17 of 19 rows are as printed; 2 misprints" in capsys.readouterr().out
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["as_printed"] == 17 and all(math.isfinite(line["rdp_epsilon"]) for line in document["rows"])
    assert cli.main(["privacy", "table", "--table", "3"]) == 1 and "--table: found [3]" in capsys.readouterr().err
