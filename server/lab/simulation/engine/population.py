"""Who takes part, and with which examples: functions of (seed, round, client), so that a round repeats itself.

K: clients of a group; N: examples of each; R = K N rows, client after client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import ConfigurationError
from server.lab.simulation.engine.settings import EngineSettings, LocalWork

__all__ = [
    "Arrays",
    "Drawing",
    "Held",
    "Population",
    "Task",
    "Tensors",
    "cohort",
    "joined",
    "reassigned",
    "steps",
]

Tensors = tuple[Tensor, ...]
"""Examples: every tensor has one row an example."""
Arrays = dict[str, NDArray[np.float32]]
Drawing = Callable[[], np.random.Generator]
"""Gives the generator of what is drawn: made where something is, which takes a tenth of a small client's step."""
_COHORT, _BATCHES = 0xC0, 0xBA


class Population(Protocol):
    """Clients and what they hold."""

    def __len__(self) -> int: ...

    def examples(self, client: int) -> int:
        """How many the client holds, 1 or more."""

    def batch(self, client: int, chosen: Sequence[int], drawing: Drawing) -> Tensors:
        """Those of its examples, with whatever is drawn afresh at every use (SpecAugment)."""


class Task(Protocol):
    """What is learned."""

    @property
    def network(self) -> nn.Module: ...

    def losses(self, network: nn.Module, batch: Tensors) -> Tensor:
        """Of every example [R], in nats."""

    def errors(self, network: nn.Module, batch: Tensors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Wrong words (or labels) of every example [R], and how many there are of them."""


@dataclass(frozen=True, slots=True)
class Held:
    """A population whose examples are in memory: tensors of each client."""

    clients: Sequence[Tensors]

    def __len__(self) -> int:
        return len(self.clients)

    def examples(self, client: int) -> int:
        return len(self.clients[client][0])

    def batch(self, client: int, chosen: Sequence[int], drawing: Drawing) -> Tensors:
        if chosen == range(self.examples(client)):
            return self.clients[client]
        index = torch.as_tensor(np.asarray(chosen))
        return tuple(values[index] for values in self.clients[client])


def cohort(settings: EngineSettings, population: int, number: int) -> list[int]:
    """The clients that report in round ``number``, in order."""
    generator = np.random.default_rng([settings.seed, number, _COHORT])
    return [int(client) for client in np.sort(generator.choice(population, settings.cohort, replace=False))]


def steps(local: LocalWork, population: Population, client: int, key: Sequence[int]) -> Iterator[Tensors]:
    """The batches of a client's local work. Examples come in random order, all of them before any comes again; in
    ``epochs`` the last batch of an epoch is what is left. key: (seed, round), and whatever else tells draws apart."""
    held = population.examples(client)
    drawing = cache(lambda: np.random.default_rng([*key, client, _BATCHES]))
    size = min(local.batch, held)
    if local.kind == "epochs":
        for _ in range(local.count):
            order = drawing().permutation(held)
            for start in range(0, held, size):
                yield population.batch(client, order[start : start + size].tolist(), drawing)
        return
    if size == held:  # in whatever order
        for _ in range(local.count):
            yield population.batch(client, range(held), drawing)
        return
    waiting: list[int] = []
    for _ in range(local.count):
        if len(waiting) < size:
            waiting += [place for place in drawing().permutation(held).tolist() if place not in waiting]
        chosen, waiting = waiting[:size], waiting[size:]
        yield population.batch(client, chosen, drawing)


def joined(batches: Sequence[Tensors]) -> tuple[Tensors, Tensor]:
    """(examples [R, ...] of K clients as one batch, their shares of their client's mean [K, N], 0 for filling).

    Clients with fewer examples are filled up with their first one; shorter sequences with zeros.
    """
    if len({tuple([values.shape for values in batch]) for batch in batches}) == 1:  # nothing is to be filled
        held = len(batches[0][0])
        shares = torch.full((len(batches), held), 1.0 / held, dtype=torch.float64)
        return tuple(torch.cat(values) for values in zip(*batches, strict=True)), shares
    rows = max(len(batch[0]) for batch in batches)
    shares = torch.zeros(len(batches), rows, dtype=torch.float64)
    parts: list[list[Tensor]] = [[] for _ in batches[0]]
    longest = [
        [max(batch[place].shape[axis] for batch in batches) for axis in range(1, batches[0][place].dim())]
        for place in range(len(parts))
    ]
    for number, batch in enumerate(batches):
        count = len(batch[0])
        shares[number, :count] = 1.0 / count
        for place, values in enumerate(batch):
            missing = [wanted - size for wanted, size in zip(longest[place], values.shape[1:], strict=True)]
            if any(missing):
                values = functional.pad(values, [pad for size in reversed(missing) for pad in (0, size)])
            if count < rows:
                values = torch.cat([values, values[:1].expand(rows - count, *values.shape[1:])])
            parts[place].append(values)
    return tuple(torch.cat(values) for values in parts), shares


def reassigned(owners: Sequence[int], clients: int, seed: int) -> list[int]:
    """An owner for every example, uniformly drawn: the IID counterpart of a population (Pelikan et al. 2023, figure 4).

    Every one of the ``clients`` keeps at least one example, so that each can be drawn.
    """
    if len(owners) < clients:
        raise ConfigurationError(f"examples: found {len(owners)} for {clients} clients, expected one each at least")
    generator = np.random.default_rng([seed, clients])
    found = generator.integers(clients, size=len(owners))
    found[generator.permutation(len(owners))[:clients]] = np.arange(clients)
    return [int(owner) for owner in found]
