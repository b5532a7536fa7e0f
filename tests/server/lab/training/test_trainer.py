from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from device_sdk.errors import ConfigurationError, DataError
from server.lab.training.trainer import Average, Budget, load_checkpoint, save_checkpoint


@pytest.mark.parametrize(
    ("budget", "steps", "seconds", "expected"),
    [
        (Budget(steps=10), 5, 1e9, 0.5),
        (Budget(steps=10), 20, 0.0, 1.0),
        (Budget(minutes=2.0), 10**9, 30.0, 0.25),
    ],
)
def test_progress(budget: Budget, steps: int, seconds: float, expected: float) -> None:
    assert budget.progress(steps, seconds) == expected


@pytest.mark.parametrize("given", [{}, {"steps": 1, "minutes": 1.0}, {"steps": -1}, {"minutes": 0.0}])
def test_a_budget_is_one_positive_number(given: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="budget"):
        Budget(**given)  # type: ignore[arg-type]


def test_the_average_follows_constant_weights_and_lags_a_jump() -> None:
    module = nn.Linear(2, 2)
    average = Average(module, 0.9)
    for _ in range(3):
        average.update(module)
    torch.testing.assert_close(average.values["weight"], module.weight.detach())
    before = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.add_(1.0)
    average.update(module)
    assert ((average.values["weight"] > before) & (average.values["weight"] < module.weight)).all()


def stepped(module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, seed: int) -> None:
    torch.manual_seed(seed)
    optimizer.zero_grad()
    module(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    average.update(module)


def built() -> tuple[nn.Module, torch.optim.Optimizer, Average]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    return module, torch.optim.AdamW(module.parameters(), 0.1), Average(module, 0.9)


def test_training_goes_on_exactly_from_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    straight = built()
    for seed in range(6):
        stepped(*straight, seed)
        if seed == 2:
            drawn = torch.get_rng_state()
            save_checkpoint(path, *straight, {"steps": 3}, {"cpu.0": torch.get_rng_state()})
    resumed = built()
    state, generators = load_checkpoint(path, *resumed)
    assert state["steps"] == 3
    assert torch.equal(generators["cpu.0"], drawn)
    for seed in range(3, 6):
        stepped(*resumed, seed)
    for one, other in zip(straight[0].parameters(), resumed[0].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for name, value in straight[2].values.items():
        torch.testing.assert_close(value, resumed[2].values[name], rtol=0, atol=0)


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, *built(), {})
    other = nn.Linear(3, 3)
    with pytest.raises(DataError, match="not a checkpoint of this network"):
        load_checkpoint(path, other, torch.optim.AdamW(other.parameters()), Average(other, 0.9))
