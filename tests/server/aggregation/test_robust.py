"""The mean of deltas that agree against one device by device, and what attackers can do to them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from server.aggregation import robust
from server.aggregation.robust import cosine_mean, cosine_weights

SHAPES = {"a": (3, 2), "b": (4,)}


def delta_of(row: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    return {"a": row[:6].reshape(3, 2), "b": row[6:]}


def mean_of(rows: NDArray[np.float32], trimmed: float = 0.2) -> NDArray[np.float32]:
    found = cosine_mean(map(delta_of, rows), SHAPES, trimmed)
    assert {name: values.shape for name, values in found.items()} == SHAPES
    return np.concatenate([found["a"].reshape(-1), found["b"]])


def mean_of_those_that_agree(rows: NDArray[np.float64], dropped: int) -> NDArray[np.float64]:
    """Device by device, of rows that are scaled down to their median norm."""
    bound = float(np.median([np.linalg.norm(row) for row in rows]))
    left = list(range(len(rows)))
    units = [row / np.linalg.norm(row) for row in rows]
    for _ in range(dropped):
        sums = {one: sum(float(units[one] @ units[other]) for other in left if other != one) for one in left}
        lowest = min(left, key=sums.__getitem__)
        if sums[lowest] >= 0:
            break
        left.remove(lowest)
    return np.mean([rows[one] * min(1.0, bound / float(np.linalg.norm(rows[one]))) for one in left], axis=0)


@pytest.mark.parametrize("count", [1, 5, 10, 31])
@pytest.mark.parametrize("shared", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("block", [1, 400, 1 << 20])
def test_device_by_device(count: int, block: int, shared: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robust, "BLOCK_BYTES", block)
    rows = np.random.default_rng(count).normal(shared, 1.0, size=(count, 10)).astype(np.float32)
    for share in (0.0, 0.2, 0.4):
        dropped = min(math.ceil(share * count), (count - 1) // 2)
        expected = mean_of_those_that_agree(rows.astype(np.float64), dropped)
        assert mean_of(rows, share) == pytest.approx(expected, abs=1e-6)


@given(st.integers(3, 12), st.integers(0, 2**32 - 1))
def test_order_does_not_matter_and_bits_repeat(count: int, seed: int) -> None:
    rows = (rng := np.random.default_rng(seed)).normal(size=(count, 10)).astype(np.float32)
    assert np.array_equal(mean_of(rows), mean_of(rng.permutation(rows)))


@given(st.integers(5, 20), st.integers(0, 2**32 - 1), st.floats(-30.0, 30.0))
def test_less_than_half_cannot_make_it_longer_than_an_honest_delta(count: int, seed: int, power: float) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, 10)).astype(np.float32)
    lying = (count - 1) // 2
    rows[:lying] *= np.float32(10.0**power)
    longest = np.linalg.norm(rows[lying:].astype(np.float64), axis=1).max()
    for share in (0.0, 0.2):
        assert np.linalg.norm(mean_of(rows, share)) <= longest * (1 + 1e-5)


def test_who_does_not_point_away_moves_the_mean_of_those_that_agree_by_its_share() -> None:
    rng = np.random.default_rng(4)
    honest = rng.normal(1.0, 0.1, size=(40, 10)).astype(np.float32)
    bound = np.linalg.norm(honest, axis=1).max()
    for attack in (np.full((10, 10), 3e38, np.float32), 30 * honest[:10], np.zeros((10, 10), np.float32)):
        found = mean_of(np.concatenate([honest, attack]))
        assert np.linalg.norm(found - honest.mean(axis=0)) <= 0.2 * 2 * bound
    opposite = mean_of(np.concatenate([honest, -1e6 * honest[:10]]))
    assert opposite == pytest.approx(mean_of(honest), abs=0.02)


@pytest.mark.parametrize("factor", [-1.0, -30.0])
@pytest.mark.parametrize("seed", range(5))
def test_who_flips_signs_is_dropped_though_honest_deltas_hardly_agree(factor: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(20, 4000)) + 0.25 * rng.normal(size=4000)
    rows[:4] *= factor
    weights = cosine_weights(rows @ rows.T, 4)
    assert not weights[:4].any() and (weights[4:] > 0).all()


def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert mean_of(np.ones((1, 10), np.float32)).all()
    assert not list(tmp_path.rglob("*"))


def test_the_mean_of_none_and_of_those_that_all_agree() -> None:
    assert not mean_of(np.zeros((0, 10), np.float32)).any()
    row = np.linspace(-1e6, 1e6, 10, dtype=np.float32)
    assert mean_of(np.tile(row, (7, 1))) == pytest.approx(row, rel=1e-6)
