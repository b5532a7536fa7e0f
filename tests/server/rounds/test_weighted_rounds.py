"""Rounds that weigh devices by their loss or word error, and a step on held-out speech afterwards (Gao et al. 2022)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.errors import LearningError
from server.plans.round import RoundSettings, ServerStep
from server.rounds.server_step import Weights, take_server_step
from tests.server.parties import BIAS, Operator, Party, bias_moved, initial, serving, weights_of

HONEST = [0.9, 1.0, 1.1, 1.2]


@pytest.mark.parametrize(
    ("weighting", "field", "told"), [("loss", "loss", (1.0, 3.0, 0.5)), ("word_errors", "word_error", (0.0, 1.5, 0.2))]
)
def test_devices_weigh_by_what_they_tell(http: Any, operator, devices, weighting: str, field: str, told) -> None:
    values = (0.01, 0.05, -0.02)
    round_id = operator.open(marginals=None, deltas={}, weighting=weighting)
    for device, value, measure in zip(devices(3), values, told, strict=True):
        assert device.send_delta(round_id, value=value, **{field: measure}).status_code == 200
    found = operator.close(round_id)
    moved = bias_moved(http, found["model_version"])
    costs = np.maximum(told, sorted(told)[1])  # nobody can check who claims the least
    alpha = np.exp(-costs) / np.exp(-costs).sum()  # eq. 9; eq. 10's e^1 cancels
    assert moved == pytest.approx(float(alpha @ np.array(values)), abs=1e-7)
    assert found["releases"]["deltas"]["mechanism"]["weighting"] == weighting


@pytest.mark.parametrize(
    ("weighting", "header", "status", "field"),
    [
        ("loss", {}, 422, "loss"),
        ("loss", {"loss": 1.0, "word_error": 0.1}, 422, "word_error"),
        ("word_errors", {"loss": 1.0}, 422, "loss"),
        ("utterances", {"loss": 1.0}, 422, "loss"),
        ("loss", {"loss": -0.1}, 422, "loss"),
        ("loss", {"loss": float("nan")}, 422, "loss"),
        ("word_errors", {"word_error": 1e4}, 422, "word_error"),
    ],
)
def test_what_a_device_tells_is_checked(operator, device, weighting: str, header, status: int, field: str) -> None:
    answer = device.send_delta(operator.open(marginals=None, deltas={}, weighting=weighting), **header)
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text


def shift(weights: Weights, plan: RoundSettings, number: int) -> Iterator[Weights]:
    """A pseudo-device whose outcome is known: a tenth of the weights it begins with, towards 0."""
    assert plan.rehearsal is not None and plan.rehearsal.pseudo_devices == 1 and plan.deltas is not None
    yield {name: (-0.1 * weights[name]).astype(np.float32) for name in ("encoder.0.W", BIAS)}


def test_the_server_steps_from_what_the_round_made(tmp_path: Path) -> None:
    with serving(tmp_path, rehearse=shift) as http:
        operator, device = Operator(http), Party(http).enrol()
        round_id = operator.open(marginals=None, deltas={}, server_step={"utterances": 4}, teacher={"interval": 1})
        device.send_delta(round_id, value=0.05)
        made = weights_of(http, operator.close(round_id)["model_version"])
        assert made[BIAS] == pytest.approx(0.9 * (initial().weights[BIAS] + 0.05), rel=1e-5)
        assert np.array_equal(made["features.scale"], initial().weights["features.scale"])


def test_a_step_that_diverges_makes_no_model() -> None:
    def diverging(weights: Weights, plan: RoundSettings, number: int) -> Iterator[Weights]:
        yield {BIAS: np.full(5, np.inf, np.float32)}

    with pytest.raises(LearningError, match=f"server_step: {BIAS}"):
        take_server_step(ServerStep(), initial().weights, 1, diverging)


@pytest.mark.parametrize(
    ("averaging", "expected"), [("mean", (sum(HONEST) + 40.0) / 5), ("cosine", (0.9 + 1.0 + 3 * 1.1) / 5)]
)
def test_a_minority_does_not_pull_a_robust_average_far(http: Any, operator, devices, averaging: str, expected) -> None:
    """One liar among five."""
    plan = {"deltas": {"clip_norm": 1000.0}, "weighting": "uniform", "averaging": averaging}
    round_id = operator.open(marginals=None, **plan)
    for device, value in zip(devices(5), [*HONEST, 40.0], strict=True):
        assert device.send_delta(round_id, value=value).status_code == 200
    found = operator.close(round_id)
    assert found["releases"]["deltas"]["mechanism"]["averaging"] == averaging
    change = weights_of(http, found["model_version"])["encoder.0.W"] - initial().weights["encoder.0.W"]
    np.testing.assert_allclose(change, expected, rtol=1e-4)
