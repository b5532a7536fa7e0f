"""How a run of training goes, whatever the task: how long, with which learning rates and which average."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from device_sdk.checks import check_interval
from device_sdk.errors import ConfigurationError

FLOOR = 0.01
"""Share of the peak learning rate that is left at the end."""


def multiplies_bfloat16() -> bool:
    """Whether this machine does, GPU or CPU. Where it only imitates it, training takes two to three times as long."""
    able = torch.cpu.get_capabilities()
    return torch.cuda.is_available() or bool(able.get("avx512_bf16") or able.get("amx_bf16") or able.get("arm_bf16"))


@dataclass(frozen=True, slots=True)
class Budget:
    """A number of steps or minutes of training time (stops are not counted)."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ConfigurationError("budget: give either steps or minutes")
        check_interval("budget", self.steps or self.minutes or 0, "(0, inf)")

    def progress(self, steps: int, seconds: float) -> float:
        """Share of the budget used, 0 to 1."""
        return min(1.0, steps / self.steps if self.steps else seconds / (60.0 * (self.minutes or 1.0)))


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about a run that is not its task or its data.

    peak: highest learning rate, reached after ``warmup`` steps. clip: largest norm of a step's gradient. average:
    decay of the averaged weights, which are what is watched and exported. decay_vectors: whether weight decay also
    shrinks biases and gains. bfloat16: autocast, where the machine multiplies it; weights, gradients and losses stay
    float32. checkpoint_steps: steps between checkpoints, 0 for those at epochs' ends only. watch_minutes: of training,
    after which the end of an epoch is watched; watch_steps: steps after which the run is watched anyway, 0 for never.
    shares: beginning of parameters' names -> their share of the learning rate, for parts that were trained before."""

    budget: Budget
    peak: float = 2e-3
    warmup: int = 200
    seed: int = 1
    weight_decay: float = 1e-3
    decay_vectors: bool = True
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 2.0
    average: float = 0.999
    bfloat16: bool = field(default_factory=multiplies_bfloat16)
    checkpoint_steps: int = 200
    watch_minutes: float = 5.0
    watch_steps: int = 0
    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        least = dict.fromkeys(("warmup", "checkpoint_steps", "watch_steps", "watch_minutes"), "[0, inf)")
        more = {"clip": "(0, inf)", "peak": "(0, inf)", "average": "[0, 1)"}
        for name, interval in (least | more).items():
            check_interval(f"trainer.{name}", getattr(self, name), interval)

    def optimizer(self, module: nn.Module) -> Optimizer:
        """AdamW over what requires a gradient."""
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for name, value in module.named_parameters():
            if value.requires_grad:
                share = next((share for prefix, share in self.shares.items() if name.startswith(prefix)), 1.0)
                decay = self.weight_decay if self.decay_vectors or value.ndim > 1 else 0.0
                groups.setdefault((share, decay), []).append(value)
        if not groups:
            raise ConfigurationError("trainer: every parameter is frozen; leave some to train")
        rows: list[dict[str, Any]] = [
            {"params": values, "lr": self.peak * share, "weight_decay": decay}
            for (share, decay), values in groups.items()
        ]
        return torch.optim.AdamW(rows, self.peak, betas=self.betas, fused=True)

    def schedule(self, optimizer: Optimizer, progress: Callable[[], float]) -> LambdaLR:
        """Linear warm-up, then half a cosine over the whole budget, from its begin, down to FLOOR of the peak.
        progress: gives the share of the budget used, which may be one of time."""

        def factor(step: int) -> float:
            rising = min(1.0, (step + 1) / max(1, self.warmup))
            return rising * (FLOOR + (1.0 - FLOOR) * 0.5 * (1.0 + math.cos(math.pi * progress())))

        return LambdaLR(optimizer, factor)

    def averaged(self, module: nn.Module) -> AveragedModel:
        """Exponential moving average of the parameters; early on it forgets faster, so that it never lags."""

        @torch.no_grad()
        def update(averages: Sequence[Tensor], values: Sequence[Tensor], updates: Tensor | int) -> None:
            decay = min(self.average, (1.0 + float(updates)) / (10.0 + float(updates)))
            torch._foreach_lerp_(list(averages), list(values), 1.0 - decay)

        return AveragedModel(module, multi_avg_fn=update)
