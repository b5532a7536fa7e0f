"""What a trainer trains and on what: a task has the network, its loss and its decoder; a sampler has the batches.

Neither knows of devices, optimizers or checkpoints. F: feature frames (10 ms); M: mel bins."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.errors import ConfigurationError


class Movable(Protocol):
    """A batch: anything whose tensors can be taken to a device."""

    def to(self, device: torch.device) -> Any: ...


B = TypeVar("B", bound=Movable)


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of one batch, as a *sum*. total: [] float32, summed over whatever is counted (tokens, frames, ...); its
    gradient is taken. count: how many. The trainer minimizes total / count. parts: sums to report, by name, each
    divided by the same count in the log."""

    total: Tensor
    count: float
    parts: Mapping[str, float] = field(default_factory=dict)


class Resumable:
    """What keeps something between steps that a checkpoint must hold."""

    def state(self) -> dict[str, Any]:
        """That, as JSON; of a task besides ``module``, of a sampler what a plan depends on besides its arguments."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what :meth:`state` gave."""
        return None


class Task(Resumable, ABC, Generic[B]):
    """A network to train. ``module`` holds every parameter and buffer; only what requires a gradient is changed. A loss
    is computed under the trainer's autocast and on the device that ``module`` is on; whatever is random in it comes
    from torch's default generators, whose state checkpoints keep."""

    module: nn.Module

    @abstractmethod
    def loss(self, batch: B, progress: float) -> Loss:
        """The loss of a batch on this device. progress: share of the budget used, 0 to 1."""

    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        """Texts of utterances, raw log-mel [F, M] each, to count word errors of. ``module`` is in evaluation mode."""
        raise ConfigurationError(f"{type(self).__name__} does not decode: it has no utterances to watch")

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """What a finished run gives, by public name; here the module's parameters and buffers by their own."""
        return {name: value.detach().cpu().float().numpy().copy() for name, value in self.module.state_dict().items()}

    def advance(self, progress: float) -> bool:
        """Called before every step. True where the task has changed weights itself, so that averages begin anew."""
        return False


class Sampler(Resumable, ABC, Generic[B]):
    """The batches of every epoch. A plan, and a batch, is a function of its arguments, of :meth:`state` at the epoch's
    begin and of the sampler's settings, so that a resumed run goes on in mid-epoch. What is drawn at random must be
    drawn from (seed, epoch, number of the utterance), not from a generator that runs."""

    @abstractmethod
    def plan(self, epoch: int, progress: float) -> Sequence[Sequence[int]]:
        """The epoch's batches in order, each as the numbers of its utterances. progress: at the epoch's begin."""

    @abstractmethod
    def load(self, epoch: int, chosen: Sequence[int]) -> B | None:
        """A batch of some utterances of the epoch that was planned last; None where none of them can be used."""

    def ends(self, progress: float) -> bool:
        """Whether the epoch that was planned last should end before its plan does."""
        return False
