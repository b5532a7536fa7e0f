"""Recognition of whole utterances, as tasks: the CTC transformer of Pelikan et al. 2023 and the CTC-attention CRDNN of
Gao et al. 2022.

Batches count feature frames: their sampler has a subsampling of 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from device_sdk.errors import ConfigurationError
from export.networks.alphabet import Alphabet
from export.networks.crdnn import CRDNN
from export.networks.ctc_transformer import CTCTransformer
from server.lab.training.data import Batch, collate
from server.lab.training.greedy import ctc_greedy
from server.lab.training.trainer import Loss, Task

__all__ = ["CrdnnTask", "CtcTransformerTask"]


class CtcTransformerTask(Task[Batch]):
    """CTC over characters. Raises ConfigurationError for an alphabet of another size than the network's output."""

    module: CTCTransformer

    def __init__(self, network: CTCTransformer, alphabet: Alphabet) -> None:
        if alphabet.size != network.shape.tokens:
            raise ConfigurationError(f"alphabet: found {alphabet.size} tokens, expected {network.shape.tokens}")
        self.module, self.alphabet = network, alphabet

    def loss(self, batch: Batch, progress: float) -> Loss:
        total = self.module.losses(batch.features, batch.frames, batch.tokens, batch.lengths).sum()
        return Loss(total, float(batch.lengths.sum()), {"ctc": float(total.detach())})

    @torch.no_grad()
    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        batch = _batch(features, self.module.output.weight.device)
        found = ctc_greedy(self.module(batch.features, batch.frames), self.module.strided(batch.frames))
        return [self.alphabet.decode(tokens) for tokens in found]


class CrdnnTask(Task[Batch]):
    """mu CE + (1 - mu) CTC (Gao et al. 2022, eq. 3). write: token ids to text."""

    module: CRDNN

    def __init__(self, network: CRDNN, write: Callable[[list[int]], str], mu: float = 0.7) -> None:
        if not 0 <= mu <= 1:
            raise ConfigurationError(f"mu: found {mu}, expected 0 to 1")
        self.module, self.write, self.mu = network, write, mu

    def loss(self, batch: Batch, progress: float) -> Loss:
        losses = self.module.losses(batch.features, batch.frames, batch.tokens, batch.lengths, self.mu)
        total, attended, aligned = (part.sum() for part in losses)
        parts = {"attention": float(attended.detach()), "ctc": float(aligned.detach())}
        return Loss(total, float(batch.lengths.sum()), parts)

    @torch.no_grad()
    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        batch = _batch(features, self.module.ctc.weight.device)
        return [self.write(tokens) for tokens in self.module.greedy(batch.features, batch.frames)]


def _batch(features: Sequence[NDArray[np.floating]], device: torch.device) -> Batch:
    return collate([(f.astype(np.float32), []) for f in features], 1).to(device)
