"""What can be learned: labels of vectors and sequences, and what was said, by CTC.

R: examples; F: feature frames (10 ms); M: mel bins; U: characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.feedback.distance import edit_distance
from export.networks.alphabet import Alphabet
from export.networks.ctc_transformer import CTCTransformer
from server.lab.simulation.engine.population import Tensors
from server.lab.training.greedy import ctc_greedy

__all__ = ["Classification", "RecurrentClassifier", "SpeechCTC", "perceptron"]

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Classification:
    """A batch is (inputs [R, ...], labels [R] int64)."""

    network: nn.Module

    def losses(self, network: nn.Module, batch: Tensors) -> Tensor:
        return functional.cross_entropy(network(batch[0]), batch[1], reduction="none")

    def errors(self, network: nn.Module, batch: Tensors) -> tuple[Counts, Counts]:
        wrong = network(batch[0]).argmax(-1) != batch[1]
        return wrong.long().numpy(), np.ones(len(wrong), np.int64)


def perceptron(sizes: Sequence[int]) -> nn.Module:
    """Linear layers with rectifiers between."""
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class RecurrentClassifier(nn.Module):
    """An LSTM over vectors [R, T, I] and a linear layer on its last output."""

    def __init__(self, inputs: int, hidden: int, labels: int, layers: int = 1) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(inputs, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, labels)

    def forward(self, inputs: Tensor) -> Tensor:
        _, (last, _) = self.recurrent(inputs)
        scores: Tensor = self.output(last[-1])
        return scores


@dataclass(frozen=True, slots=True)
class SpeechCTC:
    """A batch is (features [R, F, M] raw log-mel, frames [R], tokens [R, U], lengths [R]); errors are of words."""

    network: CTCTransformer
    alphabet: Alphabet

    def losses(self, network: nn.Module, batch: Tensors) -> Tensor:
        assert isinstance(network, CTCTransformer)
        features, frames, tokens, lengths = batch
        return network.losses(features, frames, tokens, lengths)

    def errors(self, network: nn.Module, batch: Tensors) -> tuple[Counts, Counts]:
        assert isinstance(network, CTCTransformer)
        features, frames, tokens, lengths = batch
        with torch.no_grad():
            found = ctc_greedy(network(features, frames), network.strided(frames))
        wrong, counted = np.zeros(len(found), np.int64), np.zeros(len(found), np.int64)
        for row, (path, told, length) in enumerate(zip(found, tokens.tolist(), lengths.tolist(), strict=True)):
            truth = self.alphabet.decode(told[:length]).split()
            wrong[row], counted[row] = edit_distance(truth, self.alphabet.decode(path).split()), len(truth)
        return wrong, counted
