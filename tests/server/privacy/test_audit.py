"""The canary attack: it stays below the claim on the samplers that ship, and finds those that are broken."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from server.privacy.audit import BROKEN, EVENTS, SHIPPED, Finding, audit, clopper_pearson

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


def test_floats_prove_counts() -> None:
    """A quarter of the releases of a zero count have bits that no other count can have, and no integer ones do."""
    bits = EVENTS["bits below the canary's"]
    rng = np.random.default_rng()
    assert 0.2 < bits(rng.laplace(size=50_000)).mean() < 0.35
    assert not bits(1.0 + rng.laplace(size=50_000)).any()
    assert not bits(np.arange(-5000, 5000) / 256).any()
    assert "bits" in found("numpy's Laplace, in floats", QUICK).event


@pytest.mark.parametrize(("hits", "runs"), [(0, 50), (1, 50), (25, 50), (50, 50), (123, 100_000)])
def test_bounds_against_scipys(hits: int, runs: int) -> None:
    expected = binomtest(hits, runs).proportion_ci(0.95, method="exact")
    assert clopper_pearson(hits, runs, 0.025) == pytest.approx((expected.low, expected.high))


def test_bounds_cover() -> None:
    """A sampler that tells nothing is hardly ever said to tell something."""
    rng = np.random.default_rng(7)
    wrong = [
        math.log(clopper_pearson(a, 500, 0.01)[0] / clopper_pearson(b, 500, 0.01)[1]) > 0
        for a, b in rng.binomial(500, 0.3, (2000, 2)).tolist()
    ]
    assert np.mean(wrong) < 0.02
