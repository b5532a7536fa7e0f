"""Who takes part, and with which examples: functions of (seed, round, client), so that a round repeats itself.

K: clients of a group; N: examples of each; R = K N rows, client after client."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import ConfigurationError
from server.lab.simulation.engine.settings import EngineSettings, LocalWork

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

    def held_back(self, client: int) -> Tensors | None:
        """Its own examples that it never learns from and is judged by, as they are; None where it has none."""


class Task(Protocol):
    """What is learned."""

    @property
    def network(self) -> nn.Module: ...

    def losses(self, network: nn.Module, batch: Tensors) -> Tensor:
        """Of every example [R], in nats."""

    def errors(self, network: nn.Module, batch: Tensors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Wrong words (or labels) of every example [R], and how many there are of them."""


def load(network: nn.Module, weights: Mapping[str, Tensor] | Arrays) -> None:
    """Overwrites the parameters of these names."""
    own = dict(network.named_parameters())
    with torch.no_grad():
        for name, values in weights.items():
            own[name].copy_(torch.as_tensor(values))


def cohort(settings: EngineSettings, population: int, number: int) -> list[int]:
    """The clients that report in round ``number``, in order."""
    generator = np.random.default_rng([settings.seed, number, _COHORT])
    return sorted(generator.choice(population, settings.cohort, replace=False).tolist())


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


def join(batches: Sequence[Tensors]) -> tuple[Tensors, Tensor]:
    """(examples [R, ...] of K clients as one batch, their shares of their client's mean [K, N], 0 for filling). Clients
    with fewer examples are filled up with their first one; shorter sequences with zeros."""
    if len({tuple([values.shape for values in batch]) for batch in batches}) == 1:  # nothing is to be filled
        held = len(batches[0][0])
        shares = torch.full((len(batches), held), 1.0 / held, dtype=torch.float64)
        return tuple(torch.cat(values) for values in zip(*batches, strict=True)), shares
    rows = max(len(batch[0]) for batch in batches)
    shares = torch.zeros(len(batches), rows, dtype=torch.float64)
    for number, batch in enumerate(batches):
        shares[number, : len(batch[0])] = 1.0 / len(batch[0])
    whole = []
    for parts in zip(*batches, strict=True):
        longest = [max(sizes) for sizes in zip(*(values.shape[1:] for values in parts), strict=True)]
        for values in parts:
            missing = [wanted - size for wanted, size in zip(longest, values.shape[1:], strict=True)]
            if any(missing):
                values = functional.pad(values, [pad for size in reversed(missing) for pad in (0, size)])
            whole.append(torch.cat([values, values[:1].expand(rows - len(values), *values.shape[1:])]))
    step = len(batches)
    return tuple(torch.cat(whole[start : start + step]) for start in range(0, len(whole), step)), shares


def reassign(owners: Sequence[int], clients: int, seed: int) -> list[int]:
    """An owner for every example, uniformly drawn: the IID counterpart of a population (Pelikan et al. 2023, figure 4).
    Every one of the ``clients`` keeps at least one example, so that each can be drawn."""
    if len(owners) < clients:
        raise ConfigurationError(f"examples: found {len(owners)} for {clients} clients, expected one each at least")
    generator = np.random.default_rng([seed, clients])
    found = generator.integers(clients, size=len(owners))
    found[generator.permutation(len(owners))[:clients]] = np.arange(clients)
    owned: list[int] = found.tolist()
    return owned
