"""Small networks of every kind of layer, with clients that hold different numbers of examples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from export.networks.alphabet import ALPHABETS
from export.networks.ctc_transformer import CTCTransformer, CTCTransformerShape
from server.lab.simulation.engine.population import Held, Task
from server.lab.simulation.engine.tasks import Classification, RecurrentClassifier, SpeechCTC, perceptron

__all__ = ["KINDS", "made"]

LABELS = 5


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
        scores: Tensor = self.output(self.norm(values).mean(1))
        return scores


def made(kind: str, clients: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Task, Held]:
    """A task and its population; ``speech`` is float32 within, since a CTC loss is."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    networks: dict[str, Callable[[], nn.Module]] = {
        "perceptron": lambda: perceptron([4, 6, LABELS]),
        "recurrent": lambda: RecurrentClassifier(3, 4, LABELS, layers=2),
        "convolution": Seer,
    }
    held = []
    for _ in range(clients):
        count = int(generator.integers(1, 5))
        labels = torch.randint(LABELS, (count,))
        if kind == "perceptron":
            held.append((torch.randn(count, 4, dtype=dtype), labels))
        elif kind == "recurrent":
            held.append((torch.randn(count, 6, 3, dtype=dtype), labels))
        elif kind == "convolution":
            held.append((torch.randn(count, 2, 9, dtype=dtype), labels))
        else:
            frames = torch.randint(30, 41, (count,))
            features = torch.randn(count, int(frames.max()), 8, dtype=dtype)
            held.append((features, frames, torch.randint(1, 5, (count, 3)), torch.randint(1, 4, (count,))))
    if kind == "speech":
        shape = CTCTransformerShape(mel_bins=8, size=8, feed_forward=12, layers=2, heads=2, dropout=0.0, layer_drop=0.0)
        return SpeechCTC(CTCTransformer(shape).to(dtype).eval(), ALPHABETS["en"]), Held(held)
    return Classification(networks[kind]().to(dtype)), Held(held)


KINDS = ("perceptron", "recurrent", "convolution", "speech")
