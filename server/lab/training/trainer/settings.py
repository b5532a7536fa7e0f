"""How a trainer goes about it, whatever the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from device_sdk.errors import ConfigurationError
from server.lab.training.trainer.schedules import Budget, Schedule

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about a run that is not its task or its data.

    clip: largest norm of a step's gradient. accumulate: batches whose gradients make one step. average: decay of the
    averaged weights, which are what is watched and exported. decay_vectors: whether weight decay also shrinks biases
    and gains. bfloat16: autocast; weights, gradients and losses stay float32.
    checkpoint_steps: steps between checkpoints, 0 for those at epochs' ends only. watch_minutes: of training, after
    which the end of an epoch is watched; watch_steps: steps after which the run is watched anyway, 0 for never.
    shares: beginning of parameters' names -> their share of the learning rate, for parts that were trained before.
    """

    budget: Budget
    schedule: Schedule = field(default_factory=Schedule)
    seed: int = 1
    weight_decay: float = 1e-3
    decay_vectors: bool = True
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 2.0
    accumulate: int = 1
    average: float = 0.999
    bfloat16: bool = True
    checkpoint_steps: int = 200
    watch_minutes: float = 5.0
    watch_steps: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.accumulate < 1 or self.clip <= 0 or not 0.0 <= self.average < 1.0:
            raise ConfigurationError(
                f"trainer: found accumulate={self.accumulate}, clip={self.clip}, average={self.average}; "
                "expected at least 1, more than 0 and a share below 1"
            )
        if min(self.checkpoint_steps, self.watch_steps, self.watch_minutes) < 0:
            raise ConfigurationError(
                f"trainer: found checkpoint_steps={self.checkpoint_steps}, watch_steps={self.watch_steps}, "
                f"watch_minutes={self.watch_minutes}; expected at least 0"
            )

    def optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """AdamW over what requires a gradient."""
        named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
        if not named:
            raise ConfigurationError("trainer: every parameter is frozen; leave some to train")
        groups: list[dict[str, Any]] = []
        for share in sorted({1.0, *self.shares.values()}, reverse=True):
            trained = [value for name, value in named if self._share(name) == share]
            shrunk = [value for value in trained if self.decay_vectors or value.ndim > 1]
            kept = [value for value in trained if not (self.decay_vectors or value.ndim > 1)]
            groups.append({"params": shrunk, "weight_decay": self.weight_decay, "share": share})
            groups.append({"params": kept, "weight_decay": 0.0, "share": share})
        given = [group for group in groups if group["params"]]
        return torch.optim.AdamW(given, self.schedule.peak, betas=self.betas, fused=True)

    def _share(self, name: str) -> float:
        return next((share for prefix, share in self.shares.items() if name.startswith(prefix)), 1.0)
