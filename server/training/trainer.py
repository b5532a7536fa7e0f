"""The loop's machinery: learning rate, averaged weights, atomic checkpoints with exact resume, the log.

Nothing here knows what is trained.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from device_sdk.errors import ConfigurationError, DataError

__all__ = ["Average", "Budget", "append_log", "learning_rate", "load_checkpoint", "save_checkpoint", "write_atomically"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to train: a number of steps or minutes of training time (stops are not counted)."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ConfigurationError("budget: give either steps or minutes")
        if (self.steps or self.minutes or 0) <= 0:
            raise ConfigurationError(f"budget: found {self.steps or self.minutes}, expected more than 0")

    def progress(self, steps: int, seconds: float) -> float:
        """Share of the budget used, 0 to 1."""
        if self.steps is not None:
            return min(1.0, steps / self.steps)
        assert self.minutes is not None
        return min(1.0, seconds / (60.0 * self.minutes))


def learning_rate(progress: float, step: int, peak: float, warmup: int, floor: float = 0.01) -> float:
    """Linear warm-up over ``warmup`` steps, then half a cosine over the budget down to ``floor`` of the peak."""
    rising = min(1.0, (step + 1) / max(1, warmup))
    return peak * rising * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress))))


class Average:
    """Exponential moving average of a module's parameters; early on it forgets faster, so that it never lags."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.values = {name: value.detach().clone() for name, value in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.updates += 1
        decay = min(self.decay, (1.0 + self.updates) / (10.0 + self.updates))
        torch._foreach_lerp_(list(self.values.values()), [p.detach() for p in module.parameters()], 1.0 - decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        for name, value in module.named_parameters():
            value.copy_(self.values[name])


def save_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, state: Mapping[str, Any]
) -> None:
    """One safetensors file, replaced atomically: parameters, buffers, optimizer state, average and a JSON state."""
    tensors: dict[str, Tensor] = {f"module.{name}": value for name, value in module.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.values.items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in slots.items()}
    held = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    temporary = path.with_suffix(".part")
    save_file(held, temporary, {"state": json.dumps({**state, "average_updates": average.updates})})
    temporary.replace(path)


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average
) -> dict[str, Any]:
    """Restore what :func:`save_checkpoint` wrote, into objects built with the same settings. Returns the JSON state.

    Raises DataError when the file is damaged or belongs to another network.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            state: dict[str, Any] = json.loads(file.metadata()["state"])
        module.load_state_dict(_under(tensors, "module."))
        averaged = _under(tensors, "average.")
        average.values = {name: averaged[name] for name in average.values}  # a file keeps no order
    except Exception as error:
        raise DataError(f"{path}: not a checkpoint of this network ({error}); choose another folder") from error
    average.updates = state["average_updates"]
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimizer.").items():
        index, slot = name.split(".", 1)
        slots.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return state


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def append_log(path: Path, record: Mapping[str, Any]) -> None:
    """Append one JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.strftime("%H:%M:%S"), **record}) + "\n")


def write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content)
    temporary.replace(path)
