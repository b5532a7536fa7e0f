"""Several steps of many clients together: every client's weights in one stack, every layer one batched product.

All begin with the same weights, so the first step is one product of all rows. A step moves the stack by the gradients'
factors in place; gradients are never held. Clients with fewer steps than others stop early: later steps have a rate of
zero.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server.lab.simulation.engine.layers import Tape, patched, recorded
from server.lab.simulation.engine.measures import rates
from server.lab.simulation.engine.population import Task, Tensors, joined
from server.lab.simulation.engine.settings import LocalWork, Privacy
from server.lab.simulation.engine.updates import Group, Sent, clip_scales

__all__ = ["Grouped"]


class Grouped:
    """Owns a copy of the network, whose own parameters are not used."""

    def __init__(self, task: Task, local: LocalWork, privacy: Privacy | None) -> None:
        self.task, self.local, self.privacy = task, local, privacy
        self.network = copy.deepcopy(task.network).requires_grad_(False)
        self.shapes = {name: tuple(p.shape) for name, p in task.network.named_parameters() if p.requires_grad}

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent:
        clients = len(group.batches)
        own = dict(self.network.named_parameters())
        for name, values in weights.items():
            own[name].copy_(values)
        stack: dict[str, Tensor] | None = None
        total, steps = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.float64)
        last: list[Tensors | None] = [None] * clients
        while True:
            taken = [next(batches, None) for batches in group.batches]
            active = torch.tensor([batch is not None for batch in taken])
            if not bool(active.any()):
                break
            last = [old if new is None else new for old, new in zip(last, taken, strict=True)]
            means, stack = self._step(stack, weights, [batch for batch in last if batch is not None], active)
            total += means
            steps += active
        assert stack is not None
        errors = self._errors(stack, last) if group.errors else None
        losses = (total / steps).numpy()
        deltas = {name: stack[name].sub_(weights[name]) for name in self.shapes}
        squares = {name: torch.linalg.vector_norm(values.flatten(1), dim=1).square() for name, values in deltas.items()}
        scales = clip_scales(squares, self.shapes, self.privacy)
        counts = group.weigh(losses, errors)
        chosen = torch.from_numpy(counts).to(next(iter(deltas.values())).dtype)
        layers = {name: values.double().sqrt().numpy() for name, values in squares.items()}
        return Sent(
            {name: torch.tensordot(chosen * scales[name], values, 1) for name, values in deltas.items()},
            counts,
            losses,
            np.sqrt(sum(values**2 for values in layers.values())),
            layers,
            [
                {name: values[index] * scales[name][index] for name, values in deltas.items()}
                for index in range(clients if group.keep else 0)
            ],
        )

    def _step(
        self, stack: dict[str, Tensor] | None, base: Mapping[str, Tensor], batches: list[Tensors], active: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(mean losses of all clients before a step, 0 for those that are done; their weights after it). stack: their
        weights, overwritten; None before the first step, when all share the base."""
        batch, shares = joined(batches)
        tape = Tape(len(batches))
        with patched(recorded(self.network, tape, stack)):
            losses = self.task.losses(self.network, batch)
            means = (losses.view_as(shares) * shares.to(losses.dtype)).sum(1)
            gradients = torch.autograd.grad(means.sum(), tape.outputs)
        factors = tape.factors(gradients)
        rate = active.to(losses.dtype) * -self.local.rate
        if self.local.clip_norm is not None:
            whole = torch.stack([factors[name].squares() for name in self.shapes]).sum(0).sqrt()
            rate *= (self.local.clip_norm / whole.clamp(min=1e-30)).clamp(max=1.0)
        moved = {}
        for name, values in base.items():
            now = values if stack is None else stack[name]
            if name not in self.shapes:
                moved[name] = values.expand(len(batches), *values.shape)
                continue
            pulled = None
            if self.local.proximal and stack is not None:
                pulled = (values - now).mul_(self.local.rate * self.local.proximal)
                pulled.mul_(active.to(values.dtype).view(-1, *[1] * values.dim()))
            moved[name] = factors[name].moved(now, rate)
            if pulled is not None:
                moved[name].add_(pulled)
        return means.detach().double() * active, moved

    @torch.no_grad()
    def _errors(self, stack: Mapping[str, Tensor], batches: list[Tensors | None]) -> NDArray[np.float64]:
        batch, shares = joined([batch for batch in batches if batch is not None])
        with torch.enable_grad(), patched(recorded(self.network, Tape(len(batches)), stack)):
            return rates(*self.task.errors(self.network, batch), shares)
