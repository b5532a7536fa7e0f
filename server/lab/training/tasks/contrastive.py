"""Pre-training by contrastive predictive coding, and recognition that begins with its encoder (Ramesh et al. 2023), as
tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.errors import ConfigurationError, DataError
from export.networks.context_rnnt import ContextRNNT
from export.networks.cpc import CPC
from server.lab.training.data import Batch
from server.lab.training.greedy import greedy
from server.lab.training.rnnt.learner import Learner
from server.lab.training.trainer import Loss, Task

__all__ = ["ContextRnntTask", "CpcTask", "Phases"]


class CpcTask(Task[Batch]):
    """InfoNCE, summed over steps and averaged over utterances; it needs no text and decodes nothing.

    Batches count stacked frames and hold raw features.
    """

    module: CPC

    def __init__(self, network: CPC) -> None:
        self.module = network

    def loss(self, batch: Batch, progress: float) -> Loss:
        losses, right = self.module.losses(batch.features, batch.frames)
        total = losses.sum()
        count = float(len(losses))
        return Loss(total, count, {"cpc": float(total.detach()), "right": float(right.mean()) * count})


@dataclass(frozen=True, slots=True)
class Phases:
    """When a recognizer is trained by what, as shares of the budget.

    flat: up to here by a guess of where each token is; ctc: up to here by CTC, then by RNN-T with ``helper`` times CTC.
    The paper trains by RNN-T alone, which takes far more steps to begin with; (0, 0, 0) is that. pruning: see
    ``export.losses.rnnt``.
    """

    flat: float = 0.1
    ctc: float = 0.4
    helper: float = 0.3
    pruning: float = 1e-4

    def __post_init__(self) -> None:
        if not 0 <= self.flat <= self.ctc <= 1 or self.helper < 0:
            raise ConfigurationError(
                f"phases: found flat={self.flat}, ctc={self.ctc}, helper={self.helper}; "
                "expected 0 <= flat <= ctc <= 1 and no negative helper"
            )


class ContextRnntTask(Task[Batch]):
    """An RNN-T whose encoder may have been pre-trained. Raises DataError for a tokenizer of another size."""

    module: Learner

    def __init__(
        self, network: ContextRNNT, tokenizer: sentencepiece.SentencePieceProcessor, phases: Phases = Phases()
    ) -> None:
        pieces = network.architecture.pieces
        if tokenizer.get_piece_size() != pieces:
            raise DataError(f"tokenizer: {tokenizer.get_piece_size()} pieces, expected {pieces} as the network has")
        self.tokenizer, self.phases = tokenizer, phases
        self.module = Learner(network.architecture, 0.0)
        self.module.network = network
        letters = [len(tokenizer.id_to_piece(index).strip("\u2581")) for index in range(pieces)]
        self.letters = torch.tensor(letters, dtype=torch.float32).clamp(min=1.0)
        self.transducer = phases.ctc == 0.0

    def loss(self, batch: Batch, progress: float) -> Loss:
        learner, phases = self.module, self.phases
        hidden = learner.network.hidden(learner.network.stack(batch.features))
        if progress < phases.flat:
            total, count = learner.flat_loss(hidden, batch, self.letters)
            return Loss(total, count, {"flat": float(total.detach())})
        parts: dict[str, Tensor] = {}
        if self.transducer:
            parts["rnnt"] = learner.rnnt_loss(hidden, batch, torch.float32, phases.pruning)
        if not self.transducer or phases.helper > 0:
            parts["ctc"] = learner.ctc_loss(hidden, batch)
        total = parts["rnnt"] + phases.helper * parts["ctc"] if len(parts) == 2 else next(iter(parts.values()))
        return Loss(total, float(batch.lengths.sum()), {name: float(value.detach()) for name, value in parts.items()})

    def advance(self, progress: float) -> bool:
        if self.transducer or progress < self.phases.ctc:
            return False
        self.module.begin_transducer()
        self.transducer = True
        return True

    def state(self) -> dict[str, Any]:
        return {"transducer": self.transducer}

    def restore(self, state: Any) -> None:
        self.transducer = bool(state["transducer"])

    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        found = greedy(self.module.network, features) if self.transducer else self.module.ctc_decoded(features)
        return [self.tokenizer.decode(tokens) for tokens in found]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        return self.module.network.to_parameters()
