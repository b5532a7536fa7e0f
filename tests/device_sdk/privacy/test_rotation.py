"""The rotation is orthogonal, known to both sides, and leaves no value that stands out."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

from device_sdk.privacy.rotation import block_size, rotate, unrotate


@given(st.integers(1, 300), st.text(max_size=20), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_norms_and_products_stay_and_it_can_be_undone(values: int, seed: str, drawn: int) -> None:
    vectors = np.random.default_rng(drawn).normal(size=(2, values))
    rotated = rotate(vectors, seed)
    np.testing.assert_allclose(rotated @ rotated.T, vectors @ vectors.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(unrotate(rotated, seed), vectors, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(rotate(vectors[0], seed), rotated[0], "one by one as all together")


@pytest.mark.parametrize("values", [1, 2, 32, 64, 2048])
def test_a_power_of_two_is_multiplied_by_the_walsh_hadamard_matrix(values: int) -> None:
    """Against scipy's matrix: columns are those of H, each with a sign."""
    found = rotate(np.eye(values), "round").T
    signs = found[0] * math.sqrt(values)
    np.testing.assert_allclose(np.abs(signs), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found, hadamard(values) / math.sqrt(values) * signs, atol=1e-12)


@pytest.mark.parametrize("values", [64, 100, 1000, 1500])
def test_no_value_stands_out_whatever_the_vector_was(values: int) -> None:
    """Hoeffding's bound for all values of 200 rounds at a chance of 1e-9, of vectors with everything in one place, the
    same everywhere, or along a row of the matrix itself."""
    size = block_size(values)
    most = math.sqrt(2 * math.log(2 * 600 * values / 1e-9) / size)
    row = np.zeros(values)
    row[:size] = hadamard(size)[size // 3] / math.sqrt(size)
    vectors = np.stack([np.eye(values)[values - 1], np.full(values, values**-0.5), row])
    for number in range(200):
        assert np.abs(rotate(vectors, f"round-{number}")).max() <= most


def test_another_round_is_another_rotation() -> None:
    vector = np.arange(100.0)
    first, again, other = (rotate(vector, seed) for seed in ("r1", "r1", "r2"))
    assert (first == again).all() and np.abs(first - other).max() > 1
