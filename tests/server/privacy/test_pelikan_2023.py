"""Rényi accounting against dp-accounting where that converges, and Pelikan et al. 2023's tables."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from device_sdk import cli
from server.privacy.sampled_gaussian import (
    ORDERS,
    Plan,
    epsilon_at,
    judge,
    pld_epsilon,
    published_rows,
    renyi_divergence,
)


@given(st.integers(100, 10**6), st.floats(0.8, 20.0), st.integers(2, 32), st.integers(1, 5000))
def test_whole_orders_against_dp_accounting(cohort: int, z: float, order: int, rounds: int) -> None:
    accountant, plan = RdpAccountant(orders=[float(order)]), Plan(10**6, cohort, rounds, z, 1e-6)
    accountant.compose(PoissonSampledDpEvent(plan.sampling, GaussianDpEvent(z)), rounds)
    assert epsilon_at(plan, order) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-9, abs=1e-9)


@given(st.floats(1.01, 30.0), st.floats(0.05, 10.0))
def test_without_sampling_it_is_the_gaussian_s(alpha: float, z: float) -> None:
    assert renyi_divergence(1.0, z, alpha) == pytest.approx(alpha / (2 * z * z))
    assert renyi_divergence(1.0 - 1e-12, z, alpha) == pytest.approx(alpha / (2 * z * z), rel=1e-6)


@given(st.floats(0.001, 0.9), st.floats(0.05, 5.0), st.floats(1.05, 20.0))
def test_more_sampling_or_a_higher_order_never_costs_less(q: float, z: float, alpha: float) -> None:
    here = renyi_divergence(q, z, alpha)
    assert here >= -1e-12
    assert renyi_divergence(min(1.0, 1.1 * q), z, alpha) >= here * (1 - 1e-9) - 1e-12
    assert renyi_divergence(q, z, 1.1 * alpha) >= here * (1 - 1e-9) - 1e-12


def test_sixty_eight_of_seventy_four_rows_are_as_printed_and_the_others_are_named() -> None:
    rows = published_rows()
    assert Counter(row.table for row in rows) == {2: 19, 16: 41, 17: 14}
    misprints = [(row.table, verdict.misprint) for row in rows if (verdict := judge(row)).misprint]
    assert misprints == [
        (2, "epsilon: printed 1.3, but order 4 gives 13"),
        (2, "order: printed 3, but epsilon 7.2 is that of order 4"),
        (16, "epsilon: printed 1.3, but order 4 gives 13"),
        (16, "order: printed 3, but epsilon 7.2 is that of order 4"),
        (17, "order: printed 1.3, but epsilon 1.1e+07 is that of order 1.1"),
        (17, "order: printed 3, but epsilon 1.8e+02 is that of order 1.5"),
    ]


def test_pld_is_never_above_rdp() -> None:
    quick = [row for row in published_rows() if row.table == 17 and row.noise_multiplier > 2]
    assert len(quick) >= 3
    for row in quick:
        assert 0 < pld_epsilon(row) <= min(epsilon_at(row, order) for order in ORDERS)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["privacy", "table", "--table", "2", "--no-pld", "--output", str(tmp_path / "t.json")]) == 0
    assert "17 of 19 rows are as printed; 2 misprints" in capsys.readouterr().out
    document = json.loads((tmp_path / "t.json").read_text())
    assert document["as_printed"] == 17
    assert all(math.isfinite(line["rdp_epsilon"]) for line in document["rows"])
    assert cli.main(["privacy", "table", "--table", "3"]) == 1
    assert "--table: found [3]" in capsys.readouterr().err
