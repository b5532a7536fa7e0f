from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.learning.learner import Student, rebased

vectors = st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3)


def arrays(values: list[float]) -> dict[str, np.ndarray]:
    return {"a": np.array(values[:1], np.float32), "b": np.array(values[1:], np.float32)}


def flat(weights) -> np.ndarray:
    return np.concatenate([weights["a"], weights["b"]])


def test_by_hand() -> None:
    # own move (3, 4, 0), the base's move (2, 0, 0): of the own one (0, 4, 0) is left, half of it is kept.
    student = Student(arrays([4.0, 5.0, 1.0]), arrays([0.0, 0.0, 0.0]), steps=7, utterances=3)
    found = rebased(student, arrays([1.0, 1.0, 1.0]), arrays([3.0, 1.0, 1.0]), 0.5)
    np.testing.assert_allclose(flat(found.weights), [3.0, 3.0, 1.0])
    assert found.teacher is found.weights is found.start
    assert (found.steps, found.utterances) == (0, 0)


@pytest.mark.parametrize("rate", [0.5, 1.0, 3.0])
def test_alone_a_device_does_not_add_what_the_base_took_from_it(rate: float) -> None:
    old, local = arrays([0.0, 1.0, 2.0]), arrays([1.0, -1.0, 2.5])
    new = {name: old[name] + np.float32(rate) * (local[name] - old[name]) for name in old}
    found = rebased(Student(local, local), old, new, 1.0)
    np.testing.assert_allclose(flat(found.weights), flat(new), atol=1e-6)


@given(vectors, vectors, vectors, st.floats(0, 1))
def test_what_is_kept_is_no_longer_than_the_own_move_and_never_points_with_the_bases(own, shift, old, keep) -> None:
    base, moved, change = arrays(old), np.array(own, np.float32), np.array(shift, np.float32)
    new = {name: base[name] + each for name, each in arrays(shift).items()}
    student = Student({name: base[name] + each for name, each in arrays(own).items()}, base)
    kept = flat(rebased(student, base, new, keep).weights) - flat(new)
    assert np.linalg.norm(kept) <= keep * np.linalg.norm(moved) + 1e-4
    assert float(kept @ change) <= 1e-3


def test_the_same_base_again_changes_nothing_of_a_full_share() -> None:
    base, local = arrays([0.0, 0.0, 0.0]), arrays([1.0, 2.0, 3.0])
    assert flat(rebased(Student(local, local), base, base, 1.0).weights).tolist() == [1.0, 2.0, 3.0]


def test_nothing_kept_is_the_base_itself() -> None:
    new = arrays([1.0, 2.0, 3.0])
    found = rebased(Student(arrays([0.0, 1.0, 0.0]), new), arrays([0.0, 0.0, 0.0]), new, 0.0)
    assert found.weights is new and found.start is None
