"""RNN-T training as a task: which loss in which phase, and greedy decoding.

F: feature frames (10 ms); M: mel bins; V: pieces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_sdk.errors import DataError
from server.lab.training.data import Batch
from server.lab.training.greedy import greedy
from server.lab.training.rnnt.learner import Learner
from server.lab.training.rnnt.recipe import Recipe
from server.lab.training.trainer import Loss, Task

__all__ = ["RnntTask"]


class RnntTask(Task[Batch]):
    """Flat start, CTC, then RNN-T with CTC as a helper.

    begun: whether the network has been trained, so that there is no flat start; transducer: whether it is trained by
    RNN-T, from the beginning or since the phases before it ended.
    Raises DataError for a tokenizer of another size than the recipe's.
    """

    def __init__(
        self,
        recipe: Recipe,
        tokenizer: sentencepiece.SentencePieceProcessor,
        *,
        begun: bool = False,
        transducer: bool = False,
    ) -> None:
        architecture = recipe.architecture
        if tokenizer.get_piece_size() != architecture.pieces:
            raise DataError(
                f"tokenizer: {tokenizer.get_piece_size()} pieces, expected {architecture.pieces} for {recipe.preset}"
            )
        self.recipe, self.tokenizer = recipe, tokenizer
        self.begun, self.transducer = begun, transducer
        self.module: Learner = Learner(architecture, recipe.dropout)
        letters = [len(tokenizer.id_to_piece(index).strip("\u2581")) for index in range(architecture.pieces)]
        self.letters = torch.tensor(letters, dtype=torch.float32).clamp(min=1.0)

    def loss(self, batch: Batch, progress: float) -> Loss:
        recipe, learner = self.recipe, self.module
        hidden = learner.network.hidden(learner.network.stack(batch.features))
        if not self.begun and progress < recipe.flat_share:
            total, count = learner.flat_loss(hidden, batch, self.letters)
            return Loss(total, count, {"flat": float(total.detach())})
        tokens = max(1.0, float(batch.lengths.sum()))
        losses: dict[str, Tensor] = {}
        if self.transducer:
            dtype = torch.bfloat16 if recipe.bfloat16 else torch.float32
            losses["rnnt"] = learner.rnnt_loss(hidden, batch, dtype, recipe.pruning)
        if not self.transducer or recipe.helper:
            losses["ctc"] = learner.ctc_loss(hidden, batch)
        total = losses["rnnt"] + recipe.helper * losses["ctc"] if len(losses) == 2 else next(iter(losses.values()))
        return Loss(total, tokens, {name: float(value.detach()) for name, value in losses.items()})

    def advance(self, progress: float) -> bool:
        if self.transducer or progress < self.recipe.ctc_share:
            return False
        self.module.begin_transducer()
        self.transducer = True
        return True

    def state(self) -> dict[str, Any]:
        return {"phase": "rnnt" if self.transducer else "ctc"}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.transducer = state["phase"] == "rnnt"

    def decode(self, features: Sequence[NDArray[np.floating]]) -> list[str]:
        found = greedy(self.module.network, features) if self.transducer else self.module.ctc_decoded(features)
        return [self.tokenizer.decode(tokens) for tokens in found]

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The network's, under their public names; before the RNN-T has begun with the joint it would begin with."""
        network = self.module.network
        if self.transducer:
            return network.to_parameters()
        copy = Learner(self.recipe.architecture, 0.0)
        copy.load_state_dict({name: value.cpu() for name, value in self.module.state_dict().items()})
        copy.begin_transducer()
        return copy.network.to_parameters()
