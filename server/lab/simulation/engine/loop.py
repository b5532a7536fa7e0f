"""Local work client by client on one copy of the weights: for networks that cannot go in bulk, and for large ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from server.lab.simulation.engine.measures import rates
from server.lab.simulation.engine.population import Task
from server.lab.simulation.engine.settings import LocalWork, Privacy
from server.lab.simulation.engine.updates import Group, Sent, clip_scales

__all__ = ["Loop"]


class Loop:
    """Owns the copy."""

    def __init__(self, task: Task, local: LocalWork, privacy: Privacy | None) -> None:
        self.task, self.local, self.privacy = task, local, privacy
        self.network = copy.deepcopy(task.network)
        own = dict(self.network.named_parameters())
        self.parameters = {name: own[name] for name, p in task.network.named_parameters() if p.requires_grad}
        self.frozen = {name: parameter for name, parameter in own.items() if name not in self.parameters}
        self.shapes = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent:
        trained: list[Tensor] = list(self.parameters.values())
        base = [weights[name] for name in self.parameters]
        with torch.no_grad():
            for name, parameter in self.frozen.items():
                parameter.copy_(weights[name])
        losses, errors, squares, deltas, counts = [], [], [], [], []
        total = [torch.zeros_like(values) for values in base]
        for batches in group.batches:
            with torch.no_grad():
                torch._foreach_copy_(trained, base)
            seen = []
            for batch in batches:
                mean = self.task.losses(self.network, batch).mean()
                gradients = list(torch.autograd.grad(mean, trained))
                seen.append(float(mean.detach()))
                self._step(trained, base, gradients)
            losses.append(float(np.mean(seen)))
            if group.errors:
                with torch.no_grad():
                    errors.append(rates(*self.task.errors(self.network, batch), torch.ones(1, len(batch[0])))[0])
            with torch.no_grad():
                delta = list(torch._foreach_add(trained, base, alpha=-1))
                norms = torch.stack(torch._foreach_norm(delta)).square()
                own = dict(zip(self.parameters, norms[:, None], strict=True))
                scales = clip_scales(own, self.shapes, self.privacy)
                rate = np.array(errors[-1:]) if group.errors else None
                count = group.weigh(np.array(losses[-1:]), rate)
                if any(bool(scale < 1) for scale in scales.values()):
                    torch._foreach_mul_(delta, [scale.squeeze(0) for scale in scales.values()])
                torch._foreach_add_(total, delta, alpha=float(count[0]))
            squares.append(norms.double().numpy())
            counts.append(float(count[0]))
            if group.keep:
                deltas.append(dict(zip(self.parameters, delta, strict=True)))
        layers = {name: np.sqrt([row[place] for row in squares]) for place, name in enumerate(self.parameters)}
        return Sent(
            dict(zip(self.parameters, total, strict=True)),
            np.array(counts),
            np.array(losses),
            np.sqrt(sum(values**2 for values in layers.values())),
            layers,
            deltas,
        )

    def _step(self, trained: list[Tensor], base: list[Tensor], gradients: list[Tensor]) -> None:
        with torch.no_grad():
            if self.local.proximal:
                torch._foreach_add_(gradients, torch._foreach_add(trained, base, alpha=-1), alpha=self.local.proximal)
            rate = -self.local.rate
            if self.local.clip_norm is not None:
                norm = float(torch.stack(torch._foreach_norm(gradients)).norm())
                rate *= min(1.0, self.local.clip_norm / max(norm, 1e-30))
            torch._foreach_add_(trained, gradients, alpha=rate)
