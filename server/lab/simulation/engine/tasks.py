"""What can be learned: what was said, by CTC; and its errors.

R: examples; F: feature frames (10 ms); M: mel bins; U: characters."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.feedback.distance import edit_distance
from export.networks.ctc_transformer import Alphabet, CTCTransformer
from server.lab.simulation.engine.population import Population, Task, Tensors, join, load
from server.lab.training.greedy import ctc_greedy

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SpeechCTC:
    """A batch is (features [R, F, M] raw log-mel, frames [R], tokens [R, U], lengths [R]); errors are of words."""

    network: CTCTransformer
    alphabet: Alphabet

    def losses(self, network: nn.Module, batch: Tensors) -> Tensor:
        assert isinstance(network, CTCTransformer)
        return network.losses(*batch)

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


@dataclass(frozen=True, slots=True)
class ClientScore:
    """Of one client: wrong of counted words (or labels), the sum of its losses (nats) and its examples."""

    wrong: int
    counted: int
    loss: float
    examples: int


@torch.no_grad()
def evaluate(
    task: Task, weights: Mapping[str, Tensor], population: Population, clients: Sequence[int], at_once: int = 16
) -> list[ClientScore]:
    """Every client's score on all that it holds, with nothing drawn but what the population draws from a fixed seed."""
    network = copy.deepcopy(task.network).eval()
    load(network, weights)
    found = []
    for start in range(0, len(clients), at_once):
        held = [(client, range(population.examples(client))) for client in clients[start : start + at_once]]
        batches = [population.batch(client, every, lambda: np.random.default_rng(0)) for client, every in held]
        batch, shares = join(batches)
        real = shares.numpy() > 0
        figures = (*task.errors(network, batch), task.losses(network, batch).double().numpy())
        sums = [np.where(real, values.reshape(real.shape), 0).sum(1).tolist() for values in figures]
        found += [ClientScore(*own) for own in zip(*sums, [len(every) for _, every in held], strict=True)]
    return found


def summary(scores: Sequence[ClientScore]) -> dict[str, float]:
    """error: micro-averaged; loss: mean of examples; mean, std, worst_tenth: of clients' own error rates."""
    own = np.sort([score.wrong / max(1, score.counted) for score in scores])
    return {
        "error": sum(score.wrong for score in scores) / max(1, sum(score.counted for score in scores)),
        "loss": sum(score.loss for score in scores) / max(1, sum(score.examples for score in scores)),
        "mean": float(own.mean()),
        "std": float(own.std()),
        "worst_tenth": float(own[-max(1, len(own) // 10) :].mean()),
    }
