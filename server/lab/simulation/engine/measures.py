"""Errors of clients and of whole populations."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server.lab.simulation.engine.population import Population, Task, joined

__all__ = ["ClientScore", "evaluate", "rates", "summary"]


@dataclass(frozen=True, slots=True)
class ClientScore:
    """Of one client: wrong of counted words (or labels), the sum of its losses (nats) and its examples."""

    client: int
    wrong: int
    counted: int
    loss: float
    examples: int


def rates(wrong: NDArray[np.int64], counted: NDArray[np.int64], shares: Tensor) -> NDArray[np.float64]:
    """Error rate of each of K clients from those of their examples [R]; filling, whose share is 0, does not count."""
    real = shares.numpy() > 0
    sums = [np.where(real, values.reshape(real.shape), 0).sum(1) for values in (wrong, counted)]
    return np.asarray(sums[0] / np.maximum(sums[1], 1), np.float64)


@torch.no_grad()
def evaluate(
    task: Task, weights: Mapping[str, Tensor], population: Population, clients: Sequence[int], at_once: int = 16
) -> list[ClientScore]:
    """Every client's score on all that it holds, with nothing drawn but what the population draws from a fixed seed."""
    network = copy.deepcopy(task.network).eval()
    own = dict(network.named_parameters())
    for name, values in weights.items():
        own[name].copy_(values)
    found = []
    for start in range(0, len(clients), at_once):
        chosen = clients[start : start + at_once]
        batch, shares = joined(
            [
                population.batch(client, range(population.examples(client)), lambda: np.random.default_rng(0))
                for client in chosen
            ]
        )
        real = shares.numpy() > 0
        losses = np.where(real, task.losses(network, batch).double().numpy().reshape(real.shape), 0).sum(1)
        wrong, counted = (
            np.where(real, values.reshape(real.shape), 0).sum(1) for values in task.errors(network, batch)
        )
        for place, client in enumerate(chosen):
            held = int(real[place].sum())
            found.append(ClientScore(client, int(wrong[place]), int(counted[place]), float(losses[place]), held))
    return found


def summary(scores: Sequence[ClientScore]) -> dict[str, float]:
    """error: micro-averaged; loss: mean of examples; mean, std, worst_tenth: of clients' own error rates."""
    own = np.sort([score.wrong / max(1, score.counted) for score in scores])
    worst = own[-max(1, len(own) // 10) :]
    return {
        "error": sum(score.wrong for score in scores) / max(1, sum(score.counted for score in scores)),
        "loss": sum(score.loss for score in scores) / max(1, sum(score.examples for score in scores)),
        "mean": float(own.mean()),
        "std": float(own.std()),
        "worst_tenth": float(worst.mean()),
    }
