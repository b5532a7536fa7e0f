from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ConfigurationError, LearningError
from device_sdk.learning.settings import MaskSettings, StepSettings, TeacherSettings
from device_sdk.learning.step import Momentum, mask, sgd
from device_sdk.learning.teacher import follow


def arrays(*values: list[float]) -> dict[str, np.ndarray]:
    return {f"p{index}": np.array(value, np.float32) for index, value in enumerate(values)}


vectors = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=6)


def test_a_step_by_hand() -> None:
    weights = arrays([1.0, 2.0], [3.0]) | {"features.mean": np.ones(2, np.float32)}
    settings = StepSettings(learning_rate=0.1, clip_norm=2.5)
    stepped, momentum, norm = sgd(weights, arrays([3.0, 0.0], [4.0]), 2.0, Momentum(), settings)
    assert norm == 5.0
    np.testing.assert_allclose(stepped["p0"], [0.85, 2.0], rtol=1e-6)
    np.testing.assert_allclose(stepped["p1"], [2.8], rtol=1e-6)
    assert stepped["features.mean"] is weights["features.mean"]
    assert (momentum.steps, momentum.loss, momentum.velocity) == (1, 2.0, {})
    assert weights["p0"].tolist() == [1.0, 2.0]


def test_momentum_adds_up() -> None:
    settings = StepSettings(learning_rate=1.0, clip_norm=10, momentum=0.5)
    weights, momentum = arrays([0.0]), Momentum()
    for _ in range(3):
        weights, momentum, _ = sgd(weights, arrays([1.0]), 1.0, momentum, settings)
    np.testing.assert_allclose(weights["p0"], [-(1 + 1.5 + 1.75)])
    assert momentum.steps == 3


@pytest.mark.parametrize(
    ("gradient", "loss", "momentum", "words"),
    [
        ([1.0], math.nan, Momentum(), "loss: found nan"),
        ([1.0], math.inf, Momentum(), "loss: found inf"),
        ([math.nan], 1.0, Momentum(), "gradient p0"),
        ([3e38, 3e38], 1.0, Momentum(), "norm|not finite"),
        ([2e4], 1.0, Momentum(), "gradient norm: found 2e.04"),
        ([1.0], 1000.0, Momentum(loss=20.0), "running mean 20"),
    ],
)
def test_divergence_is_refused_and_the_weights_stay(gradient, loss, momentum, words) -> None:
    weights = arrays([1.0] * len(gradient))
    with np.errstate(all="ignore"), pytest.raises(LearningError, match=words):
        sgd(weights, arrays(gradient), loss, momentum, StepSettings())
    assert weights["p0"].tolist() == [1.0] * len(gradient)


def test_a_hard_utterance_after_easy_ones_is_no_divergence() -> None:
    stepped, _, _ = sgd(arrays([1.0]), arrays([1.0]), 40.0, Momentum(loss=0.5), StepSettings())
    assert stepped["p0"][0] < 1.0


def test_a_step_that_would_overflow_is_refused() -> None:
    settings = StepSettings(learning_rate=1e38, clip_norm=1e3)
    with np.errstate(all="ignore"), pytest.raises(LearningError, match="p0: the step leaves"):
        sgd(arrays([1.0]), arrays([1e3]), 1.0, Momentum(), settings)


@pytest.mark.parametrize(
    "make",
    [
        lambda: StepSettings(learning_rate=0.0),
        lambda: StepSettings(clip_norm=math.inf),
        lambda: StepSettings(momentum=1.0),
        lambda: TeacherSettings(decay=1.5),
        lambda: TeacherSettings(interval=0),
        lambda: TeacherSettings(confidence=-0.1),
        lambda: MaskSettings(time_masks=-1),
        lambda: MaskSettings(time_share=2.0),
    ],
)
def test_settings_outside_their_domain(make) -> None:
    with pytest.raises(ConfigurationError, match="found"):
        make()


def test_the_teacher_is_an_average_at_its_interval() -> None:
    teacher, student = arrays([0.0]), arrays([1.0])
    settings = TeacherSettings(decay=0.9, interval=2)
    assert follow(teacher, student, 1, settings) is teacher
    np.testing.assert_allclose(follow(teacher, student, 2, settings)["p0"], [0.1], rtol=1e-6)
    for step in range(200):
        teacher = follow(teacher, student, step, settings)
    np.testing.assert_allclose(teacher["p0"], [1.0], atol=1e-4)


@given(st.integers(1, 80), st.integers(0, 1000))
def test_masks_put_the_mean_and_stay_within_their_share(frames: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(frames, 16)).astype(np.float32)
    mean = np.full(16, 99.0, np.float32)
    settings = MaskSettings(frequency_masks=1, frequency_width=5, time_masks=3, time_width=10, time_share=0.3)
    result = mask(features, mean, settings, np.random.default_rng(seed))
    changed = result != features
    assert np.all(result[changed] == 99.0)
    assert changed.all(axis=0).sum() <= 5 or frames < 4
    assert changed.all(axis=1).sum() <= int(0.3 * frames)
    assert not np.any(features == 99.0)
    none = MaskSettings(frequency_masks=0, time_masks=0)
    np.testing.assert_array_equal(mask(features, mean, none, generator), features)
