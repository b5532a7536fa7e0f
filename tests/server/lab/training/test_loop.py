"""The training loop on a network of a few numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.errors import ConfigurationError, DataError, LearningError
from server.lab.training.data import Example
from server.lab.training.trainer import Budget, Loss, Sampler, Settings, Task, Trainer
from server.lab.training.trainer.checkpoints import load_tensors, save_tensors


@dataclass(frozen=True)
class Points:
    """x: [B, 3]; y: [B]."""

    x: Tensor
    y: Tensor

    def to(self, device: torch.device) -> Points:
        return Points(self.x.to(device), self.y.to(device))


class Regression(Task[Points]):
    """Least squares of 24 points; what it hears is its first weight, rounded to tenths."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = nn.Linear(3, 1)

    def loss(self, batch: Points, progress: float) -> Loss:
        squares = (self.module(batch.x)[:, 0] - batch.y).square()
        return Loss(squares.sum(), float(len(batch.y)), {"squares": float(squares.detach().sum())})

    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        assert not self.module.training
        return [f"{float(self.module.weight.detach()[0, 0]):.1f}"] * len(features)


class Drawn(Sampler[Points]):
    def __init__(self, size: int) -> None:
        self.x = torch.randn(24, 3, generator=torch.Generator().manual_seed(1))
        self.y = self.x @ torch.tensor([2.0, -1.0, 0.5])
        self.size = size
        self.loaded: list[tuple[int, ...]] = []

    def plan(self, epoch: int, progress: float) -> list[list[int]]:
        order = np.random.default_rng(epoch).permutation(24).tolist()
        return [order[start : start + self.size] for start in range(0, 24, self.size)]

    def load(self, epoch: int, chosen: Sequence[int]) -> Points | None:
        self.loaded.append(tuple(chosen))
        kept = [number for number in chosen if number != 5]  # which cannot be used
        return Points(self.x[kept], self.y[kept]) if kept else None


SETTINGS = Settings(Budget(steps=30), 0.1, 1, clip=1e6, average=0.0, bfloat16=False, weight_decay=0.0)


def weights(trainer: Trainer[Points]) -> NDArray[np.float32]:
    return trainer.task.weights()["weight"]


@pytest.mark.parametrize("budget", [Budget(steps=30), Budget(minutes=1e-3)])
def test_calls_that_end_before_the_budget_are_one_run(tmp_path: Path, budget: Budget) -> None:
    """The time of every call is over when it begins: it takes one step or closes an epoch of three. In steps, they give
    what one call gives."""
    settings, calls, record = replace(SETTINGS, budget=budget), 0, {"finished": False}
    while record.get("finished") is False:
        call = Trainer(Regression(), Drawn(8), settings, tmp_path / "calls", until=0.0)
        record, calls = call.run(), calls + 1
        assert calls * 3 // 4 <= record["steps"] <= calls and (record.get("finished") is False) == (call.progress < 1.0)
    if budget.steps:
        assert record["steps"] == budget.steps
        straight = Trainer(Regression(), Drawn(8), settings, tmp_path / "straight")
        straight.run()
        np.testing.assert_array_equal(weights(call), weights(straight))


def test_a_batch_that_cannot_be_used_makes_no_step(tmp_path: Path) -> None:
    sampler = Drawn(1)
    record = Trainer(Regression(), sampler, replace(SETTINGS, budget=Budget(steps=23)), tmp_path).run()
    assert (record["steps"], record["epoch"]) == (23, 1)
    assert set(sampler.loaded) == {(number,) for number in range(24)}


def test_batches_for_a_gpu_come_from_other_processes_in_order(tmp_path: Path) -> None:
    sampler = Drawn(1)
    trainer = Trainer(Regression(), sampler, SETTINGS, tmp_path)
    plan = sampler.plan(0, 0.0)
    here = list(trainer._loaded(plan))
    sampler.loaded.clear()
    trainer.device = torch.device("cuda")  # nothing is moved there yet
    for one, other in zip(here, trainer._loaded(plan), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)
    assert sampler.loaded == []


def example(text: str, source: str) -> Example:
    return Example(np.zeros((3, 4), np.float32), text, source)


@pytest.mark.parametrize(("source", "chosen"), [("voices.development", True), ("voices.heldout", False)])
def test_development_speech_chooses_the_weights(tmp_path: Path, source: str, chosen: bool) -> None:
    """The weight passes 1.0 on its way to 2.0; where that is what development speech wants, it is what stays."""
    settings = replace(SETTINGS, peak=0.08, budget=Budget(steps=80), watch_steps=1)
    trainer = Trainer(Regression(), Drawn(8), settings, tmp_path, watched=[example("1.0", source)])
    record = trainer.run()
    assert (round(float(weights(trainer)[0, 0]), 1) == 1.0) == ("best" in record) == chosen
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    rates = {line["steps"]: line["wer"][source] for line in lines if "wer" in line}
    assert min(rates.values()) == 0.0 and rates[80] == 1.0
    if chosen:
        assert rates[record["best"]["steps"]] == 0.0
        again = Trainer(Regression(), Drawn(8), settings, tmp_path, watched=[example("1.0", source)])
        again.run()  # it has ended: nothing is trained, the choice is the same
        np.testing.assert_array_equal(weights(again), weights(trainer))


def test_observers_hear_of_steps(tmp_path: Path) -> None:
    heard: list[tuple[int, float, Mapping[str, float]]] = []

    def observe(step: int, progress: float, figures: Mapping[str, float]) -> None:
        heard.append((step, progress, figures))

    Trainer(Regression(), Drawn(8), replace(SETTINGS, warmup=4), tmp_path, observers=(observe,)).run()
    steps = [(step, figures) for step, _, figures in heard if "learning_rate" in figures]
    assert [step for step, _ in steps] == list(range(1, 31))
    rates = [figures["learning_rate"] for _, figures in steps]
    cosine = [0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / 30)) for step in range(30)]
    assert rates == pytest.approx([0.1 * min(1, (step + 1) / 4) * cosine[step] for step in range(30)])


class Deaf(Regression):
    decode = Task.decode


class Larger(Regression):
    def __init__(self) -> None:
        self.module = nn.Linear(3, 2)


def test_a_task_without_a_decoder_cannot_be_watched_nor_one_that_is_frozen_trained(tmp_path: Path) -> None:
    settings = replace(SETTINGS, budget=Budget(steps=2))
    with pytest.raises(ConfigurationError, match="Deaf does not decode"):
        Trainer(Deaf(), Drawn(8), settings, tmp_path, watched=[example("1.0", "voices")]).run()
    task = Regression()
    task.module.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="every parameter is frozen"):
        Trainer(task, Drawn(8), SETTINGS, tmp_path)


def test_a_gradient_that_is_no_number_ends_the_run(tmp_path: Path) -> None:
    sampler = Drawn(8)
    sampler.y[3] = torch.nan
    with pytest.raises(LearningError, match="the gradient is not a number"):
        Trainer(Regression(), sampler, SETTINGS, tmp_path).run()


def test_a_checkpoint_of_another_task_or_version_is_refused(tmp_path: Path) -> None:
    trainer = Trainer(Regression(), Drawn(8), SETTINGS, tmp_path)
    trainer.save()
    with pytest.raises(DataError, match="not a checkpoint of this network"):
        Trainer(Larger(), Drawn(8), SETTINGS, tmp_path).run()
    tensors, metadata = load_tensors(trainer.checkpoint)
    save_tensors(trainer.checkpoint, tensors, {**metadata, "state": '{"passes": 3}'})
    with pytest.raises(DataError, match="of another version"):
        trainer.run()


def test_the_average_follows_constant_weights_and_lags_a_jump() -> None:
    module = nn.Linear(2, 2)
    average = replace(SETTINGS, average=0.9).averaged(module)
    for _ in range(3):
        average.update_parameters(module)
    torch.testing.assert_close(average.module.weight, module.weight)
    before = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.add_(1.0)
    average.update_parameters(module)
    assert ((average.module.weight > before) & (average.module.weight < module.weight)).all()


@pytest.mark.parametrize(
    ("budget", "steps", "seconds", "expected"),
    [(Budget(steps=10), 5, 1e9, 0.5), (Budget(steps=10), 20, 0.0, 1.0), (Budget(minutes=2.0), 10**9, 30.0, 0.25)],
)
def test_progress(budget: Budget, steps: int, seconds: float, expected: float) -> None:
    assert budget.progress(steps, seconds) == expected


@pytest.mark.parametrize("numbers", [{}, {"steps": 1, "minutes": 1.0}, {"steps": -1}, {"minutes": 0.0}])
def test_a_budget_is_one_positive_number(numbers: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="budget"):
        Budget(**numbers)


@pytest.mark.parametrize(("name", "value"), [("clip", 0.0), ("average", 1.0), ("watch_steps", -1), ("peak", 0.0)])
def test_settings_that_make_no_sense_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"trainer.{name}: found {value}"):
        replace(SETTINGS, **{name: value})  # type: ignore[arg-type]
