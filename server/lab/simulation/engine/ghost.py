"""One step of many clients as one big batch: clipped per client, without a gradient of any single client.

One forward pass and one backward pass that ends at the layers' outputs; norms from rows with rows; then one product a
layer for the clipped and weighted sum.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from server.lab.simulation.engine.layers import Tape, patched, recorded
from server.lab.simulation.engine.population import Task, joined
from server.lab.simulation.engine.settings import LocalWork, Privacy
from server.lab.simulation.engine.updates import Group, Sent, clip_scales

__all__ = ["Ghost"]


class Ghost:
    """Owns a copy of the network whose parameters never ask for a gradient."""

    def __init__(self, task: Task, local: LocalWork, privacy: Privacy | None) -> None:
        self.task, self.local, self.privacy = task, local, privacy
        self.network = copy.deepcopy(task.network)
        self.trained = [name for name, p in task.network.named_parameters() if p.requires_grad]
        self.shapes = {name: tuple(p.shape) for name, p in task.network.named_parameters() if p.requires_grad}
        for parameter in self.network.parameters():
            parameter.requires_grad_(False)

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent:
        own = dict(self.network.named_parameters())
        for name, values in weights.items():
            own[name].copy_(values)
        batch, shares = joined([next(batches) for batches in group.batches])
        tape = Tape(len(group.batches))
        with patched(recorded(self.network, tape)):
            losses = self.task.losses(self.network, batch)
            means = (losses.view_as(shares) * shares.to(losses.dtype)).sum(1)
            gradients = torch.autograd.grad(means.sum(), tape.outputs)
        factors = {name: found for name, found in tape.factors(gradients).items() if name in self.shapes}
        squares = {name: factors[name].squares() for name in self.trained}
        rate = torch.full_like(means, self.local.rate)
        if self.local.clip_norm is not None:
            whole = torch.stack(list(squares.values())).sum(0).sqrt()
            rate *= (self.local.clip_norm / whole.clamp(min=1e-30)).clamp(max=1.0)
        squares = {name: values * rate.square() for name, values in squares.items()}
        scales = clip_scales(squares, self.shapes, self.privacy)
        found = means.detach().double().numpy()
        counts = group.weigh(found, None)
        chosen = torch.from_numpy(counts).to(rate.dtype)
        layers = {name: values.double().sqrt().numpy() for name, values in squares.items()}
        return Sent(
            {name: factors[name].total(-chosen * rate * scales[name]) for name in self.trained},
            counts,
            found,
            np.sqrt(sum(values**2 for values in layers.values())),
            layers,
        )
