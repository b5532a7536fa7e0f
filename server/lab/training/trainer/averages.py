"""The averaged weights, which decode better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["Average"]


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

    @contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """The averaged weights are in the module, which is in evaluation mode, without gradients; then all is back."""
        training = module.training
        own = {name: value.detach().clone() for name, value in module.named_parameters()}
        self.copy_to(module)
        module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            module.train(training)
            with torch.no_grad():
                for name, value in module.named_parameters():
                    value.copy_(own[name])
