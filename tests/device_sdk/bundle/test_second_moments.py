from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import PRESETS
from device_sdk.bundle.second_moments import SECOND_MOMENTS_FILE, moments, read, serialize
from device_sdk.errors import BundleError
from export.bundles import rewrite

TINY = PRESETS["tiny"]


def squares(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.exponential(1e-6, shape) for name, shape in TINY.parameter_shapes().items()}


def test_moments_by_hand() -> None:
    found = moments({"w": np.array([[1.0, 2.0], [3.0, 6.0]]), "b": np.array([4.0, 5.0])})
    assert [vector.tolist() for vector in found["w"]] == [[1.5, 4.5], [2.0, 4.0]]
    assert [vector.tolist() for vector in found["b"]] == [[4.0, 5.0]]


def test_it_comes_back_as_it_was_written() -> None:
    before = moments(squares())
    after = read(serialize(before), TINY, "test")
    assert before.keys() == after.keys()
    for name, vectors in before.items():
        for one, other in zip(vectors, after[name], strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda found: found.pop("joiner.output.bias"), r"joiner\.output\.bias/0"),
        (lambda found: found.update(other=found["joiner.output.bias"]), "other/0"),
        (lambda found: found.update({"joiner.output.bias": (np.ones(3, np.float32),)}), r"\[3\], expected float32"),
        (lambda found: found["joiner.output.bias"][0].__setitem__(0, -1.0), "holds -1"),
        (lambda found: found["joiner.output.bias"][0].__setitem__(0, np.nan), "holds nan"),
        (lambda found: found["joiner.output.bias"][0].__setitem__(slice(None), 0.0), "not all zero"),
    ],
)
def test_what_does_not_fit_is_refused(damage, words: str) -> None:
    found = moments(squares())
    damage(found)
    with pytest.raises(BundleError, match=words):
        read(serialize(found), TINY, "second moments of a test")


def test_a_bundle_keeps_it_with_other_weights_and_when_rewritten(tiny_bundle: Bundle, tmp_path: Path) -> None:
    assert tiny_bundle.second_moments is None
    second_moments = moments(squares())
    bundle = Bundle.open(rewrite(tiny_bundle, tmp_path / "other", second_moments=second_moments))
    again = Bundle.open(rewrite(bundle, tmp_path / "again")).with_weights(bundle.weights, "other")
    for found in (bundle.second_moments, again.second_moments):
        assert found is not None
        np.testing.assert_array_equal(found["encoder.0.W"][1], second_moments["encoder.0.W"][1])
    assert bundle.has(SECOND_MOMENTS_FILE)


def test_the_packaged_bundle_knows_its_own() -> None:
    second_moments = Bundle.open().second_moments
    assert second_moments is not None
    for vectors in second_moments.values():  # every axis' mean is the tensor's
        means = [float(vector.mean(dtype=np.float64)) for vector in vectors]
        np.testing.assert_allclose(means, means[0], rtol=1e-4)
