import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError
from server.lab.training.augmentation import Augmentation, augment, mask, stretch, warp

MEAN = np.full(64, -7.0, np.float32)


def speech(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(-8.0, 3.0, (frames, 64)).astype(np.float32)


@settings(max_examples=25, deadline=None)
@given(frames=st.integers(1, 300), seed=st.integers(0, 1000))
def test_a_variant_is_finite_and_of_like_length(frames: int, seed: int) -> None:
    given_features = speech(frames, seed)
    found = augment(given_features, MEAN, Augmentation(), np.random.default_rng(seed))
    assert found.dtype == np.float32 and found.shape[1] == 64 and np.isfinite(found).all()
    np.testing.assert_array_equal(found, augment(given_features, MEAN, Augmentation(), np.random.default_rng(seed)))
    assert frames / 1.25 - 2 <= found.shape[0] <= max(2, frames * 1.25 + 1)


@pytest.mark.parametrize(("factor", "frames"), [(1.0, 100), (2.0, 50), (0.5, 200)])
def test_stretch_changes_the_length_and_keeps_the_ends(factor: float, frames: int) -> None:
    given_features = speech(100)
    found = stretch(given_features, factor)
    assert found.shape == (frames, 64)
    np.testing.assert_allclose(found[[0, -1]], given_features[[0, -1]], rtol=1e-5)


def test_warp_by_one_changes_nothing_and_by_more_moves_a_peak_up() -> None:
    features = np.zeros((1, 64), np.float32)
    features[0, 20] = 5.0
    np.testing.assert_allclose(warp(features, 1.0), features, atol=1e-5)
    assert warp(features, 1.12)[0].argmax() > 20 > warp(features, 0.88)[0].argmax()
    flat = np.full((3, 64), -4.0, np.float32)
    for factor in (0.88, 0.95, 1.07, 1.12):
        np.testing.assert_allclose(warp(flat, factor), flat, rtol=1e-5)


def test_masks_hold_the_mean_and_never_hide_more_than_a_fifth_of_the_time() -> None:
    features = speech(100)
    for seed in range(20):
        found = mask(features, MEAN, Augmentation(bin_masks=0), np.random.default_rng(seed))
        hidden = (found != features).any(1)
        assert hidden.sum() <= 20
        np.testing.assert_array_equal(found[hidden], np.broadcast_to(MEAN, found[hidden].shape))


@pytest.mark.parametrize("setting", [{"tract": 0.5}, {"noise": 1.5}, {"tempo": -0.1}])
def test_settings_outside_their_domain_are_refused(setting: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        Augmentation(**setting)
