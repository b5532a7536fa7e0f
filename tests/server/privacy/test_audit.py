"""The canary attack: it stays below the claim on the samplers that ship, and finds those that are broken."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from server.privacy.audit import BROKEN, SHIPPED, Finding, audit, clopper_pearson

QUICK = 100_000
SURE = 0.99999
"""A test that fails once in so many runs, where 95 % would fail once in a few hundred."""


def found(name: str, runs: int, confidence: float = 0.95) -> Finding:
    finding = audit(name, runs, confidence=confidence)
    print(finding)
    assert finding.runs == runs
    return finding


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("server, discrete Laplace", QUICK),
        ("server, discrete Gaussian", 40_000),
        ("device, discrete Laplace", 20_000),
        ("devices' shares, discrete Gaussian", 40_000),
    ],
)
def test_what_ships_keeps_its_claim(name: str, runs: int) -> None:
    finding = found(name, runs, SURE)
    assert not finding.flagged
    assert finding.lower_bound > 0.25, "an attack that finds nothing audits nothing"


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name: str) -> None:
    finding = found(name, 40_000, SURE)
    assert finding.flagged
    assert finding.lower_bound > 1.2


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHIPPED, *BROKEN])
def test_a_million_runs(name: str) -> None:
    finding = found(name, 1_000_000)
    assert finding.flagged == (name in BROKEN) and finding.lower_bound > 0.9


@pytest.mark.parametrize(("hits", "runs"), [(0, 50), (1, 50), (25, 50), (50, 50), (123, 100_000)])
def test_bounds_against_scipys(hits: int, runs: int) -> None:
    expected = binomtest(hits, runs).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, runs, 0.025) == pytest.approx((expected.low, expected.high))
