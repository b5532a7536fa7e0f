"""The processes that train together: one, or as many as ``torchrun`` started."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["ALONE", "Processes", "joined"]


@dataclass(frozen=True, slots=True)
class Processes:
    """Which of how many processes this is, and the device that it trains on."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, numbers: Sequence[int]) -> Sequence[int]:
        """This process' part of a batch: no two have the same, and lengths are spread evenly where they are sorted."""
        return numbers[self.rank :: self.count]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Numbers added up over all processes."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        found: list[float] = total.tolist()
        return found

    def gather(self, value: Tensor) -> list[Tensor]:
        """A tensor of every process, in order; all have one shape."""
        if self.count == 1:
            return [value]
        own = value.to(self.device)
        found = [torch.empty_like(own) for _ in range(self.count)]
        distributed.all_gather(found, own)
        return [each.to(value.device) for each in found]

    def wait(self) -> None:
        """Until every process is here."""
        if self.count > 1:
            self.sum([0.0])

    def parallel(self, module: nn.Module) -> nn.Module:
        """The module, with gradients averaged over the processes; parts of it may go unused."""
        if self.count == 1:
            return module
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices, find_unused_parameters=True)


ALONE = Processes()


def unsynchronized(module: nn.Module) -> AbstractContextManager[None]:
    """Gradients stay this process' own, to be averaged with the next ones."""
    if isinstance(module, DistributedDataParallel):
        held: AbstractContextManager[None] = module.no_sync()
        return held
    return nullcontext()


@contextmanager
def joined(device: str | None = None) -> Iterator[Processes]:
    """This process among those that ``torchrun`` started, or alone; they part at the end.

    device: ``cpu`` or ``cuda`` (default: a GPU where there is one). Each process of a machine takes its own GPU.
    """
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen == "cuda":
        chosen = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(chosen)
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield Processes(device=torch.device(chosen))
        return
    distributed.init_process_group("nccl" if chosen.startswith("cuda") else "gloo")
    try:
        yield Processes(distributed.get_rank(), count, torch.device(chosen))
    finally:
        distributed.destroy_process_group()
