"""A cluster computes the rounds that this process does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from device_sdk.errors import StateError
from server.lab.simulation.engine.rounds import Engine, Part, RaySpread, apply, engine, init
from server.lab.simulation.engine.settings import EngineSettings, LocalWork, Privacy
from server.lab.simulation.engine.state import State
from tests.server.lab.simulation.engine.networks import made

pytest.importorskip("ray")

KEY = bytes(32)
SETTINGS = {
    "one step, noise": EngineSettings(
        cohort=5, way="ghost", group=2, privacy=Privacy(clip_norm=0.5, noise_multiplier=0.3), local=LocalWork(batch=3)
    ),
    "several steps, by loss": EngineSettings(
        cohort=5, way="loop", group=2, weighting="loss", local=LocalWork(kind="steps", count=3, batch=2)
    ),
}


@pytest.fixture(scope="module")
def spread() -> Iterator[RaySpread]:
    found = RaySpread("local", 2)
    yield found
    found.close()


def two_rounds(run: Engine) -> State:
    return apply(run, apply(run, init(run, key=KEY)))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=list(SETTINGS))
def test_a_cluster_gives_the_same_bits(settings: EngineSettings, spread: RaySpread) -> None:
    task, held = made("perceptron", 6, 0, torch.float32)
    found, expected = (two_rounds(engine(settings, task, held, held, each)) for each in (spread, None))
    for name, values in expected.weights.items():
        np.testing.assert_array_equal(found.weights[name], values)
    assert found.history == expected.history


def test_errors_of_workers_are_told(spread: RaySpread) -> None:
    task, held = made("perceptron", 6, 0, torch.float32)
    run = engine(SETTINGS["several steps, by loss"], task, held, None, spread)
    broken = {name: torch.zeros(1) for name, _ in task.network.named_parameters()}
    with pytest.raises(StateError, match="ray local: RayTaskError"):
        list(spread(run, broken, [Part(1, 0, (0,))]))
    assert two_rounds(run).number == 2, "the next round finds a cluster again"
