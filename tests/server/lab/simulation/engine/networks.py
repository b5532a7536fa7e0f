"""Small networks of every kind of layer, with clients that hold different numbers of examples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from export.networks.ctc_transformer import ALPHABETS, CTCTransformer, CTCTransformerShape
from server.lab.simulation.engine.population import Drawing, Task, Tensors
from server.lab.simulation.engine.tasks import SpeechCTC

LABELS = 5


@dataclass(frozen=True, slots=True)
class Held:
    """A population whose examples are in memory: tensors of each client. kept: what each holds back."""

    clients: Sequence[Tensors]
    kept: Sequence[Tensors] | None = None

    def __len__(self) -> int:
        return len(self.clients)

    def examples(self, client: int) -> int:
        return len(self.clients[client][0])

    def batch(self, client: int, chosen: Sequence[int], drawing: Drawing) -> Tensors:
        index = torch.as_tensor(np.asarray(chosen))
        return tuple(values[index] for values in self.clients[client])

    def held_back(self, client: int) -> Tensors | None:
        return None if self.kept is None else self.kept[client]


@dataclass(frozen=True, slots=True)
class Classification:
    """A batch is (inputs [R, ...], labels [R] int64)."""

    network: nn.Module

    def losses(self, network: nn.Module, batch: Tensors) -> Tensor:
        return functional.cross_entropy(network(batch[0]), batch[1], reduction="none")

    def errors(self, network: nn.Module, batch: Tensors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        wrong = network(batch[0]).argmax(-1) != batch[1]
        return wrong.long().numpy(), np.ones(len(wrong), np.int64)


def perceptron(sizes: Sequence[int]) -> nn.Module:
    """Linear layers with rectifiers between."""
    layers: list[nn.Module] = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Seer(nn.Module):
    """Convolutions over a sequence, strided, dilated and padded, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, 3, stride=2, padding=1)
        self.second = nn.Conv1d(4, 3, 2, dilation=2, bias=False)
        self.norm = nn.LayerNorm(3)
        self.output = nn.Linear(3, LABELS)

    def forward(self, sequences: Tensor) -> Tensor:
        values = self.second(self.first(sequences).relu()).transpose(1, 2)
        return self.output(self.norm(values).mean(1))


SHAPES: dict[str, tuple[int, ...]] = {"perceptron": (4,), "convolution": (2, 9)}
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": lambda: perceptron([4, 6, LABELS]),
    "convolution": Seer,
}
KINDS = (*NETWORKS, "speech")


def made(kind: str, clients: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Task, Held]:
    """A task and its population; ``speech`` is float32 within, since a CTC loss is."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    held: list[tuple[Tensor, ...]] = []
    for count in generator.integers(1, 5, clients).tolist():
        labels = torch.randint(LABELS, (count,))
        if kind != "speech":
            held.append((torch.randn(count, *SHAPES[kind], dtype=dtype), labels))
            continue
        frames = torch.randint(30, 41, (count,))
        features = torch.randn(count, int(frames.max()), 8, dtype=dtype)
        held.append((features, frames, torch.randint(1, 5, (count, 3)), torch.randint(1, 4, (count,))))
    if kind != "speech":
        return Classification(NETWORKS[kind]().to(dtype)), Held(held)
    shape = CTCTransformerShape(mel_bins=8, size=8, feed_forward=12, layers=2, heads=2, dropout=0.0, layer_drop=0.0)
    return SpeechCTC(CTCTransformer(shape).to(dtype).eval(), ALPHABETS["en"]), Held(held)
