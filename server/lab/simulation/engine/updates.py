"""What clients send, clipped and added up: by one big batch, with stacked weights, or client by client.

K: clients of a group; D: parameters. A client's delta is its weights after local work minus those before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.privacy.clipping import layer_bounds
from server.lab.simulation.engine.population import Tensors
from server.lab.simulation.engine.settings import Privacy

__all__ = ["Group", "Sent", "Worker", "clip_scales"]

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sent:
    """A group of clients, added up. sum: of weight times clipped delta by parameter, float32; weights [K]: how much
    each counts; losses [K]: mean training loss, nats; norms [K]: of deltas before clipping; layers: per parameter [K];
    deltas: every clipped delta, where they were asked for."""

    sum: Mapping[str, Tensor]
    weights: Vector
    losses: Vector
    norms: Vector
    layers: Mapping[str, Vector]
    deltas: Sequence[Mapping[str, Tensor]] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Clients that are computed at once. batches: an iterator of local steps for each. weigh: (losses [K], word error
    rates [K] or None) -> weights [K]; errors: whether word errors are wanted. keep: whether deltas are."""

    batches: Sequence[Iterator[Tensors]]
    weigh: Callable[[Vector, Vector | None], Vector]
    errors: bool = False
    keep: bool = False


class Worker(Protocol):
    """One way of computing clients."""

    def __call__(self, weights: Mapping[str, Tensor], group: Group) -> Sent: ...


def clip_scales(
    squares: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], privacy: Privacy | None
) -> dict[str, Tensor]:
    """What every client's delta is multiplied with to stay within its bounds, by parameter [K], at most 1.

    squares: squared norms of deltas by parameter [K]; the bounds are those of devices (Pelikan et al. 2023, definition
    3).
    """
    whole = torch.stack(list(squares.values())).sum(0)
    if privacy is None:
        return dict.fromkeys(squares, torch.ones_like(whole))

    def scale(bound: float, own: Tensor) -> Tensor:
        return (bound / own.sqrt().clamp(min=1e-30)).clamp(max=1.0)

    if privacy.clipping == "global":
        return dict.fromkeys(squares, scale(privacy.clip_norm, whole))
    bounds = layer_bounds(shapes, privacy.clip_norm, privacy.clipping)
    return {name: scale(bounds[name], own) for name, own in squares.items()}
