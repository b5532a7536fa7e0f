"""One big batch, stacked weights and a plain loop compute the same clients."""

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from device_sdk.errors import ConfigurationError
from device_sdk.privacy.clipping import clip
from server.lab.simulation.engine.layers import Tape, obstacle
from server.lab.simulation.engine.population import Task, steps
from server.lab.simulation.engine.settings import EngineSettings, LocalWork, Privacy
from server.lab.simulation.engine.workers import Ghost, Group, Grouped, Loop, Sent, worker
from tests.server.lab.simulation.engine.networks import KINDS, Classification, Held, made, perceptron

CLIENTS = 5


def sent(kind: type, task: Task, held: Held, local: LocalWork, privacy: Privacy | None) -> Sent:
    weights = {name: parameter.detach().clone() for name, parameter in task.network.named_parameters()}
    batches = [steps(local, held, client, (3, 1)) for client in range(len(held))]
    given = iter(np.arange(1.0, len(held) + 1))
    group = Group(batches, lambda losses, _: np.array([next(given) for _ in losses]))
    return kind(task, local, privacy)(weights, group)


def same(one: Sent, other: Sent, tolerance: float) -> None:
    for name, values in one.sum.items():
        torch.testing.assert_close(other.sum[name], values, rtol=0, atol=tolerance)
        np.testing.assert_allclose(other.layers[name], one.layers[name], rtol=1e-5, atol=tolerance)
    np.testing.assert_allclose(other.losses, one.losses, rtol=1e-6)
    np.testing.assert_allclose(other.norms, one.norms, rtol=1e-5, atol=tolerance)
    assert other.weights.tolist() == one.weights.tolist()


@pytest.mark.parametrize("clip_norm", [None, 0.3])
@pytest.mark.parametrize("clipping", ["global", "uniform", "dim"])
@pytest.mark.parametrize("kind", KINDS)
def test_ghost_and_loop_agree(kind: str, clipping: Any, clip_norm: float | None) -> None:
    """To 1e-6, and far below in float64 where the loss is (CTC is taken in float32)."""
    task, held = made(kind, CLIENTS)
    local = LocalWork(kind="steps", batch=3, learning_rate=0.5, clip_norm=clip_norm)
    privacy = Privacy(clip_norm=0.05, clipping=clipping)
    one, other = (sent(way, task, held, local, privacy) for way in (Loop, Ghost))
    same(one, other, 1e-6 if kind == "speech" else 1e-12)
    assert (one.norms > 0.05).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "local",
    [
        LocalWork(kind="steps", count=4, batch=2, learning_rate=0.4),
        LocalWork(kind="epochs", count=2, batch=2, learning_rate=0.4, clip_norm=0.2),
        LocalWork(kind="steps", count=3, batch=2, learning_rate=0.4, proximal=0.7),
        LocalWork(kind="gradient", batch=9),
    ],
)
def test_grouped_and_loop_agree(kind: str, local: LocalWork) -> None:
    """Clients with different numbers of steps and of examples in a batch too."""
    task, held = made(kind, CLIENTS)
    if kind == "speech":
        local = local.model_copy(update={"learning_rate": 0.02})
    privacy = Privacy(clip_norm=0.1, clipping="dim")
    one, other = (sent(way, task, held, local, privacy) for way in (Loop, Grouped))
    same(one, other, 3e-5 if kind == "speech" else 1e-12)  # CTC's float32, over several steps


@pytest.mark.parametrize("way", [Ghost, Grouped])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_is_freed_when_it_is_over(kind: str, way: type) -> None:
    """Not when the collector of cycles next comes by: it counts objects, and a pass holds few, but large ones."""
    task, held = made(kind, CLIENTS)
    gc.collect()
    gc.disable()
    try:
        sent(way, task, held, LocalWork(kind="steps", batch=3), None)
        assert not any(type(each) is Tape for each in gc.get_objects())
    finally:
        gc.enable()


@pytest.mark.parametrize("way", [Ghost, Grouped, Loop])
@pytest.mark.parametrize("clipping", ["global", "uniform", "dim"])
def test_clipping_is_that_of_devices(way: type, clipping: Any) -> None:
    task, held = made("perceptron", 1, dtype=torch.float32)
    local = LocalWork(kind="gradient", batch=9)
    plain, bounded = (sent(way, task, held, local, p) for p in (None, Privacy(clip_norm=0.2, clipping=clipping)))
    expected, norm = clip({name: values.numpy() for name, values in plain.sum.items()}, 0.2, clipping)
    assert plain.norms[0] == pytest.approx(norm, rel=1e-6)
    for name, values in expected.items():
        np.testing.assert_allclose(bounded.sum[name].numpy(), values, rtol=1e-5, atol=1e-8)


def test_opacus_agrees() -> None:
    """Sums of gradients clipped per example, by another implementation: one example a client."""
    import opacus  # slow to import

    torch.manual_seed(1)
    network = perceptron([4, 6, 5])
    inputs, labels = torch.randn(7, 4), torch.randint(5, (7,))
    held = Held([(inputs[i : i + 1], labels[i : i + 1]) for i in range(7)])
    weights = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    local, privacy = LocalWork(kind="gradient", batch=1), Privacy(clip_norm=0.5)
    group = Group([steps(local, held, client, (1, 1)) for client in range(7)], lambda losses, _: np.ones(len(losses)))
    found = Ghost(Classification(network), local, privacy)(weights, group)
    theirs = opacus.GradSampleModule(network, loss_reduction="sum")
    torch.nn.functional.cross_entropy(theirs(inputs), labels, reduction="sum").backward()  # type: ignore[no-untyped-call]
    samples = {name.removeprefix("_module."): p.grad_sample for name, p in theirs.named_parameters()}
    norms = torch.stack([values.flatten(1).square().sum(1) for values in samples.values()]).sum(0).sqrt()
    np.testing.assert_allclose(found.norms, norms.numpy(), rtol=1e-5)
    for name, values in samples.items():
        expected = -torch.tensordot((0.5 / norms).clamp(max=1), values, 1)
        torch.testing.assert_close(found.sum[name], expected, rtol=0, atol=1e-6)


def test_networks_that_cannot_go_in_bulk() -> None:
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert "BatchNorm1d" in str(obstacle(norm))
    assert "LSTM" in str(obstacle(nn.LSTM(3, 4))) and "expected groups=1" in str(obstacle(nn.Conv1d(4, 4, 3, groups=2)))
    task = Classification(norm)
    with pytest.raises(ConfigurationError, match="BatchNorm1d"):
        worker(task, EngineSettings(way="ghost"))
    with pytest.raises(ConfigurationError, match="client by client"):
        worker(Classification(perceptron([2, 2])), EngineSettings(way="grouped", weighting="word_error"))
    assert isinstance(worker(task, EngineSettings()), Loop)
    several = LocalWork(kind="steps", count=2)
    assert isinstance(worker(Classification(perceptron([2, 2])), EngineSettings(local=several)), Grouped)
    assert isinstance(worker(Classification(perceptron([2, 2])), EngineSettings()), Ghost)


def test_a_layer_that_a_step_leaves_out_does_not_move() -> None:
    """As layer drop does with large networks."""

    class Shorter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.dropped = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.used(inputs)  # type: ignore[no-any-return]

    network = Shorter()
    held = Held([(torch.randn(2, 4), torch.randint(4, (2,)))])
    weights = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    local = LocalWork(kind="gradient", batch=2)
    group = Group([steps(local, held, 0, (1, 1))], lambda losses, _: np.ones(len(losses)))
    found = Loop(Classification(network), local, None)(weights, group)
    assert {name for name, values in found.sum.items() if values.any()} == {"used.weight", "used.bias"}


def test_a_layer_used_twice_is_refused_by_name() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(inputs))

    held = Held([(torch.randn(2, 4), torch.tensor([0, 1]))])
    with pytest.raises(ConfigurationError, match="layer"):
        sent(Ghost, Classification(Twice()), held, LocalWork(), None)
