"""What the search reads of scores, natively and by numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.compilation import SWITCH
from device_sdk.decoding import block as scores
from device_sdk.runtimes import native_kernels


@pytest.fixture(params=["numpy", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native":
        monkeypatch.delenv(SWITCH, raising=False)
        found = native_kernels.native_module()
        if found is None or not found.LEVEL:
            pytest.skip("this tree holds no native kernels of these sources; `make native` compiles them")
        monkeypatch.setattr(scores, "_native", found)
    monkeypatch.setattr(scores, "_quick", request.param == "native")
    return str(request.param)


@pytest.mark.parametrize("shape", [(1, 1, 16), (3, 12, 256), (2, 5, 48), (8, 1, 7), (2, 0, 32), (1, 3, 2)])
def test_edges_are_the_blank_and_the_best_label(way: str, shape: tuple[int, int, int]) -> None:
    given = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given[:1, :, 0] = 9.0  # blank is no label even where it is best
    blanks, peaks = scores.edges(given)
    assert blanks == given[:, :, 0].tolist()
    assert peaks == [[max(row[1:].tolist()) for row in prefix] for prefix in given]


def test_arrays_that_lie_apart_are_read_too(way: str) -> None:
    whole = np.random.default_rng(1).normal(size=(4, 6, 32)).astype(np.float32)
    assert scores.edges(whole[::2]) == scores.edges(whole[::2].copy())
    assert scores.above(whole[:, ::3], 3, 1, 0.5, 32) == scores.above(whole, 3, 3, 0.5, 32)


@given(st.floats(-20, 1), st.integers(0, 2), st.integers(0, 3))
def test_above_is_more_than_the_limit_as_float32_has_it(limit: float, prefix: int, frame: int) -> None:
    given = np.random.default_rng(2).uniform(-20, 0, (3, 4, 64)).astype(np.float32)
    given[prefix, frame, 5] = np.float32(limit)
    labels, values = scores.above(given, prefix, frame, limit, 64)
    row = given[prefix, frame]
    assert labels == [label for label in range(1, 64) if row[label] > np.float32(limit)]
    assert values == row[labels].tolist()
    assert 5 not in labels


@pytest.mark.parametrize("pieces", [32, 600, 2500])
@pytest.mark.parametrize("most", [1, 8, 31])
def test_no_more_than_the_best_are_given(way: str, pieces: int, most: int) -> None:
    given = np.random.default_rng(3).normal(size=(1, 2, pieces)).astype(np.float32)
    labels, values = scores.above(given, 0, 1, -9.0, most)
    assert sorted(values) == sorted(given[0, 1, 1:].tolist())[-most:]
    assert values == given[0, 1, labels].tolist()


def test_bad_sizes_are_refused_natively(way: str) -> None:
    if way == "numpy":
        return
    given = np.zeros((1, 1, 16), np.float32)
    for name, arguments in (("edges", (1, 1, 24, given)), ("edges", (1, 2, 16, given)), ("above", (1, 16, given, 0.0))):
        with pytest.raises(ValueError, match=r"found|bytes, expected"):
            getattr(scores._native, name)(*arguments)
