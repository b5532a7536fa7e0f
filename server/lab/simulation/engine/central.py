"""What a federation is compared with and begins from: the same network, trained where all the speech lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from server.lab.simulation.engine.population import Arrays, Population, Task, joined
from server.lab.simulation.engine.rounds import parameters

__all__ = ["Central", "learned_centrally"]

_CENTRAL = 0x5E


@dataclass(frozen=True, slots=True)
class Central:
    """Adam in one cycle up to ``peak`` and down to nothing. batch: examples of a step. clip_norm: of its gradient."""

    steps: int = 2500
    batch: int = 16
    peak: float = 2e-3
    clip_norm: float = 5.0


def learned_centrally(
    task: Task,
    population: Population,
    plan: Central,
    seed: int,
    weights: Arrays | None = None,
    tell: Callable[[int, int], None] = lambda *_: None,
) -> Arrays:
    """The network's weights after all steps on client 0's examples, a function of the arguments.

    weights: to begin with, the network's own by default. tell: hears (steps done, of how many).
    """
    network = task.network
    if weights is not None:
        own = dict(network.named_parameters())
        with torch.no_grad():
            for name, values in weights.items():
                own[name].copy_(torch.from_numpy(values))
    optimizer = torch.optim.Adam(network.parameters(), plan.peak, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.peak, max(2, plan.steps), pct_start=0.1)
    generator, held = np.random.default_rng([seed, _CENTRAL]), population.examples(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for step in range(plan.steps):
            chosen = generator.choice(held, min(plan.batch, held), replace=False).tolist()
            batch, shares = joined([population.batch(0, chosen, lambda: generator)])
            optimizer.zero_grad()
            loss = (task.losses(network, batch) * shares.flatten()).sum()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), plan.clip_norm)
            optimizer.step()
            schedule.step()
            tell(step + 1, plan.steps)
    return parameters(task)
