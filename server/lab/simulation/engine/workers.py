"""What clients send, clipped and added up: by one big batch, with stacked weights, or client by client.

K: clients of a group. A client's delta is its weights after local work minus those before."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.errors import ConfigurationError
from device_sdk.privacy.clipping import layer_bounds
from server.lab.simulation.engine.layers import Tape, obstacle, patch, record
from server.lab.simulation.engine.population import Task, Tensors, join, load
from server.lab.simulation.engine.settings import EngineSettings, LocalWork, Privacy

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sent:
    """A group of clients, added up. sum: of weight times clipped delta by parameter, float32; weights [K]: how much
    each counts; losses [K]: mean training loss, nats; norms [K]: of deltas before clipping; layers: per parameter
    [K]."""

    sum: Mapping[str, Tensor]
    weights: Vector
    losses: Vector
    norms: Vector
    layers: Mapping[str, Vector]


@dataclass(frozen=True, slots=True)
class Group:
    """Clients that are computed at once. batches: an iterator of local steps for each. weigh: (losses [K], word error
    rates [K] or None) -> weights [K]; held_back: what word errors are counted on, of each client, where they are
    wanted."""

    batches: Sequence[Iterator[Tensors]]
    weigh: Callable[[Vector, Vector | None], Vector]
    held_back: Sequence[Tensors] | None = None


Worker = Callable[[Mapping[str, Tensor], Group], Sent]
"""One way of computing clients, from the published weights by parameter."""


def worker(task: Task, settings: EngineSettings) -> Worker:
    """The way that the settings ask for, or the quickest that the network allows. Raises ConfigurationError where the
    way asked for does not know the network or the weights, saying why."""
    reason = obstacle(task.network)
    if reason is None and settings.weighting == "word_error":
        reason = "word errors are counted client by client"
    way = settings.way
    if way in ("ghost", "grouped") and reason is not None:
        raise ConfigurationError(f"way: {way!r} is not possible, since {reason}; use 'loop'")
    if way == "auto":
        way = "loop" if reason is not None else "ghost" if settings.one_step else "grouped"
    kinds: dict[str, type[Ghost | Grouped | Loop]] = {"ghost": Ghost, "grouped": Grouped, "loop": Loop}
    return kinds[way](task, settings.local, settings.privacy)


def clip_scales(
    squares: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], privacy: Privacy | None
) -> dict[str, Tensor]:
    """What every client's delta is multiplied with to stay within its bounds, by parameter [K], at most 1. squares:
    squared norms of deltas by parameter [K]; the bounds are those of devices (Pelikan et al. 2023, definition 3)."""
    whole = torch.stack(list(squares.values())).sum(0)
    if privacy is None:
        return dict.fromkeys(squares, torch.ones_like(whole))

    def scale(bound: float, own: Tensor) -> Tensor:
        return (bound / own.sqrt().clamp(min=1e-30)).clamp(max=1.0)

    if privacy.clipping == "global":
        return dict.fromkeys(squares, scale(privacy.clip_norm, whole))
    bounds = layer_bounds(shapes, privacy.clip_norm, privacy.clipping)
    return {name: scale(bounds[name], own) for name, own in squares.items()}


class _Bulk:
    """Owns a copy of the network, whose parameters never ask for a gradient."""

    def __init__(self, task: Task, local: LocalWork, privacy: Privacy | None) -> None:
        self.task, self.local, self.privacy = task, local, privacy
        self.network = copy.deepcopy(task.network).requires_grad_(False)
        self.shapes = {name: tuple(p.shape) for name, p in task.network.named_parameters() if p.requires_grad}

    def backward(self, batches: Sequence[Tensors], stack: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tape]:
        """(mean losses [K], the tape with the gradients of its outputs). stack: each client's weights; None: shared."""
        batch, shares = join(batches)
        tape = Tape(len(batches))
        with patch(record(self.network, tape, stack)):
            losses = self.task.losses(self.network, batch)
            means = (losses.view_as(shares) * shares.to(losses.dtype)).sum(1)
            tape.gradients = torch.autograd.grad(means.sum(), tape.outputs)
        return means, tape

    def bound(self, rate: Tensor, squares: Sequence[Tensor]) -> None:
        """Shortens steps [K] in place whose gradients exceed the L2 bound. squares: of gradients by parameter [K]."""
        if self.local.clip_norm is not None:
            whole = torch.stack(list(squares)).sum(0).sqrt()
            rate *= (self.local.clip_norm / whole.clamp(min=1e-30)).clamp(max=1.0)


class Ghost(_Bulk):
    """One step of many clients as one big batch, without a gradient of any single client: one forward pass, one
    backward pass that ends at the layers' outputs, norms from rows with rows, then one product a layer for the clipped
    and weighted sum."""

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent:
        load(self.network, weights)
        means, tape = self.backward([next(batches) for batches in group.batches])
        factors = tape.factors()
        squares = {name: factors[name].squares() for name in self.shapes}
        rate = torch.full_like(means, self.local.rate)
        self.bound(rate, list(squares.values()))
        squares = {name: values * rate.square() for name, values in squares.items()}
        scales = clip_scales(squares, self.shapes, self.privacy)
        losses = means.detach().double().numpy()
        counts = group.weigh(losses, None)
        chosen = torch.from_numpy(counts).to(rate.dtype)
        total = {name: factors[name].total(-chosen * rate * scales[name]) for name in self.shapes}
        return Sent(total, counts, losses, *_norms(squares))


class Grouped(_Bulk):
    """Several steps of many clients: every client's weights in one stack, every layer one batched product. All begin
    with the same weights, so the first step is one product of all rows. A step moves the stack by the gradients'
    factors in place; gradients are never held. Clients with fewer steps than others stop early: later steps have a rate
    of zero."""

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent:
        clients = len(group.batches)
        load(self.network, weights)
        stack: dict[str, Tensor] | None = None
        total, steps = torch.zeros(clients, dtype=torch.float64), torch.zeros(clients, dtype=torch.float64)
        last: list[Tensors | None] = [None] * clients
        while True:
            following = [next(batches, None) for batches in group.batches]
            active = torch.tensor([batch is not None for batch in following])
            if not bool(active.any()):
                break
            last = [old if new is None else new for old, new in zip(last, following, strict=True)]
            means, stack = self._step(stack, weights, [batch for batch in last if batch is not None], active)
            total += means
            steps += active
        assert stack is not None
        losses = (total / steps).numpy()
        deltas = {name: stack[name].sub_(weights[name]) for name in self.shapes}
        squares = {name: torch.linalg.vector_norm(values.flatten(1), dim=1).square() for name, values in deltas.items()}
        scales = clip_scales(squares, self.shapes, self.privacy)
        counts = group.weigh(losses, None)
        chosen = torch.from_numpy(counts).to(next(iter(deltas.values())).dtype)
        summed = {name: torch.tensordot(chosen * scales[name], values, 1) for name, values in deltas.items()}
        return Sent(summed, counts, losses, *_norms(squares))

    def _step(
        self, stack: dict[str, Tensor] | None, base: Mapping[str, Tensor], batches: list[Tensors], active: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """(mean losses of all clients before a step, 0 for those that are done; their weights after it). stack: their
        weights, overwritten; None before the first step, when all share the base."""
        means, tape = self.backward(batches, stack)
        factors = tape.factors()
        rate = active.to(means.dtype) * -self.local.rate
        self.bound(rate, [factors[name].squares() for name in self.shapes])
        moved = {}
        for name, values in base.items():
            now = values if stack is None else stack[name]
            if name not in self.shapes:
                moved[name] = values.expand(len(batches), *values.shape)
                continue
            share = active.to(values.dtype).view(-1, *[1] * values.dim()) * (self.local.rate * self.local.proximal)
            pull = (values - now) * share if self.local.proximal and stack is not None else None
            moved[name] = factors[name].move(now, rate)
            if pull is not None:
                moved[name].add_(pull)
        return means.detach().double() * active, moved


class Loop:
    """Client by client on one copy of the weights: for networks that do not go in bulk, and for large ones."""

    def __init__(self, task: Task, local: LocalWork, privacy: Privacy | None) -> None:
        self.task, self.local, self.privacy = task, local, privacy
        self.network = copy.deepcopy(task.network)
        self.parameters = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        self.shapes = {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent:
        trained: list[Tensor] = list(self.parameters.values())
        base = [weights[name] for name in self.parameters]
        load(self.network, weights)
        losses, squares, counts = [], [], []
        total = [torch.zeros_like(values) for values in base]
        for place, batches in enumerate(group.batches):
            with torch.no_grad():
                torch._foreach_copy_(trained, base)
            seen = []
            for batch in batches:
                mean = self.task.losses(self.network, batch).mean()
                gradients = list(torch.autograd.grad(mean, trained, materialize_grads=True))  # of layers left out: 0
                seen.append(float(mean.detach()))
                self._step(trained, base, gradients)
            losses.append(float(np.mean(seen)))
            with torch.no_grad():
                errors = None
                if group.held_back is not None:
                    training = self.network.training
                    wrong, counted = self.task.errors(self.network.eval(), group.held_back[place])
                    self.network.train(training)
                    errors = np.array([wrong.sum() / max(1, counted.sum())])
                delta = list(torch._foreach_add(trained, base, alpha=-1))
                norms = torch.stack(torch._foreach_norm(delta)).square()
                own = dict(zip(self.parameters, norms[:, None], strict=True))
                scales = clip_scales(own, self.shapes, self.privacy)
                count = float(group.weigh(np.array(losses[-1:]), errors)[0])
                if any(bool(scale < 1) for scale in scales.values()):
                    torch._foreach_mul_(delta, [scale.squeeze(0) for scale in scales.values()])
                torch._foreach_add_(total, delta, alpha=count)
            squares.append(norms)
            counts.append(count)
        summed, by_layer = (dict(zip(self.parameters, each, strict=True)) for each in (total, torch.stack(squares, 1)))
        return Sent(summed, np.array(counts), np.array(losses), *_norms(by_layer))

    def _step(self, trained: list[Tensor], base: list[Tensor], gradients: list[Tensor]) -> None:
        with torch.no_grad():
            if self.local.proximal:
                torch._foreach_add_(gradients, torch._foreach_add(trained, base, alpha=-1), alpha=self.local.proximal)
            rate = -self.local.rate
            if self.local.clip_norm is not None:
                norm = float(torch.stack(torch._foreach_norm(gradients)).norm())
                rate *= min(1.0, self.local.clip_norm / max(norm, 1e-30))
            torch._foreach_add_(trained, gradients, alpha=rate)


def _norms(squares: Mapping[str, Tensor]) -> tuple[Vector, dict[str, Vector]]:
    """(norms of whole deltas [K], of every parameter's part [K]) from their squares."""
    layers = {name: values.double().sqrt().numpy() for name, values in squares.items()}
    return np.asarray(np.sqrt(sum(values**2 for values in layers.values()))), layers
