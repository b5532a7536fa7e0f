"""RNN-T training as a task: which loss in which phase, and greedy decoding.

F: feature frames (10 ms); M: mel bins; V: pieces."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.errors import ConfigurationError, DataError
from export.networks.rnnt import RNNT
from export.networks.stateless import StatelessTransducer
from server.lab.training.data import Batch
from server.lab.training.greedy import greedy
from server.lab.training.rnnt.learner import Learner
from server.lab.training.trainer import Loss, Task


@dataclass(frozen=True, slots=True)
class Phases:
    """When a recognizer is trained by what, as shares of the budget. flat: up to here by a guess of where each token
    is; ctc: up to here by CTC, then by RNN-T with ``helper`` times CTC (both per token); sparse: up to here a batch in
    three by that, the others by CTC, which takes half of the time. Ramesh et al. 2023 train by RNN-T alone, which takes
    far more steps to begin with; (0, 0, 0) is that. phones: weight of CTC of the phones, where
    a task has them. pruning, dtype: see :func:`export.losses.rnnt.rnnt_loss`."""

    flat: float = 0.1
    ctc: float = 0.4
    helper: float = 0.3
    phones: float = 0.4
    pruning: float = 1e-4
    dtype: torch.dtype = torch.float32
    sparse: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.flat <= self.ctc <= 1 or self.helper < 0 or self.phones < 0:
            raise ConfigurationError(
                f"phases: found flat={self.flat}, ctc={self.ctc}, helper={self.helper}, phones={self.phones}; "
                "expected 0 <= flat <= ctc <= 1 and no negative weight"
            )


class RnntTask(Task[Batch]):
    """Flat start, CTC, then RNN-T with CTC as a helper. begun: whether the network has been trained, so that RNN-T is
    all that there is; phones: how many its batches name, blank included. Raises DataError for a tokenizer of another
    size than the network's."""

    module: Learner

    def __init__(
        self,
        network: RNNT | StatelessTransducer,
        tokenizer: sentencepiece.SentencePieceProcessor,
        phases: Phases = Phases(),
        *,
        begun: bool = False,
        phones: int = 0,
    ) -> None:
        pieces = network.architecture.pieces
        if tokenizer.get_piece_size() != pieces:
            raise DataError(f"tokenizer: {tokenizer.get_piece_size()} pieces, expected {pieces} as the network has")
        self.tokenizer, self.phases = tokenizer, phases
        self.begun, self.transducer = begun, begun or phases.ctc == 0.0
        self.module = Learner(network, phones)
        letters = [len(tokenizer.id_to_piece(index).strip("\u2581")) for index in range(pieces)]
        self.letters = torch.tensor(letters, dtype=torch.float32).clamp(min=1.0)

    def loss(self, batch: Batch, progress: float) -> Loss:
        phases, learner = self.phases, self.module
        longest = int(batch.frames.max())  # what a Zipformer's last chunk is filled with is left out
        stacked, network = learner.network.stack(batch.features), learner.network
        layers = [network.hidden(stacked)] if learner.phone_output is None else network.layers(stacked)
        hidden, below = layers[-1][:, :longest], layers[-2:][0][:, :longest]
        if not self.begun and progress < phases.flat:
            total, count = learner.flat_loss(hidden, batch, self.letters)
            return Loss(total, count, {"flat": float(total.detach())})
        losses: dict[str, Tensor] = {}
        if self.transducer and (progress >= phases.sparse or int(batch.lengths.sum()) % 3 == 0):
            losses["rnnt"] = learner.rnnt_loss(hidden, batch, phases.dtype, phases.pruning)
        if not losses or phases.helper:
            losses["ctc"] = learner.ctc_loss(hidden, batch)
        total = losses["rnnt"] + phases.helper * losses["ctc"] if len(losses) == 2 else next(iter(losses.values()))
        if learner.phone_output is not None:
            losses["phones"] = learner.phone_loss(below, batch)
            total = total + phases.phones * losses["phones"]
        parts = {name: float(value.detach()) for name, value in losses.items()}
        return Loss(total, max(1.0, float(batch.lengths.sum())), parts)

    def advance(self, progress: float) -> bool:
        if self.transducer or progress < self.phases.ctc:
            return False
        self.module.begin_transducer()
        self.transducer = True
        return True

    def state(self) -> dict[str, Any]:
        return {"phase": "rnnt" if self.transducer else "ctc"}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.transducer = state["phase"] == "rnnt"

    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        decoded = greedy(self.module.network, features) if self.transducer else self.module.ctc_decoded(features)
        return [self.tokenizer.decode(tokens) for tokens in decoded]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The network's, under their public names; before the RNN-T has begun with the joint it would begin with."""
        learner = self.module if self.transducer else deepcopy(self.module)
        if not self.transducer:
            learner.begin_transducer()
        return learner.network.to_parameters()
