"""The steps that recognize, in torch as XNNPACK wants them: encoder, predictor and joiner.

The LSTMs are written out as cells, one linear map for each gate: XNNPACK runs such a step whole. The encoder takes one
stacked frame a call: of several in one program, XNNPACK would pack the recurrent weights once for each."""

import torch
from torch import Tensor, nn

from export.networks.rnnt import RNNT

BATCH = 256
"""Most rows that one call of the predictor or the joiner takes; a search with more makes several calls."""

Three = tuple[Tensor, Tensor, Tensor]


class Cell(nn.Module):
    """One layer of an LSTM, one step: input x [B, D], state h and c [B, H] to the next h and c."""

    def __init__(self, lstm: nn.LSTM, layer: int) -> None:
        super().__init__()
        w, r, b, c = (getattr(lstm, f"{part}_l{layer}") for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        joined = torch.cat([w, r], dim=1)
        self.gates = nn.ModuleList(_linear(*gate) for gate in zip(joined.chunk(4), (b + c).chunk(4), strict=True))

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([x, h], dim=1)
        i, f, g, o = (gate(both) for gate in self.gates)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class EncoderStep(nn.Module):
    """Raw log-mel of one stacked frame [K, M], state h and c [L, 1, H] to (encoded [1, J], h, c)."""

    def __init__(self, network: RNNT) -> None:
        super().__init__()
        self.architecture = network.architecture
        self.mean, self.scale = nn.Buffer(network.mean.clone()), nn.Buffer(network.scale.clone())
        self.cells = nn.ModuleList(Cell(network.encoder, layer) for layer in range(self.architecture.encoder_layers))
        self.joiner = network.joiner_encoder

    def forward(self, features: Tensor, h: Tensor, c: Tensor) -> Three:
        x, size = ((features - self.mean) * self.scale).reshape(1, -1), self.architecture.encoder_size
        hidden, cells = [], []
        for layer, cell in enumerate(self.cells):
            # slices, not items: XNNPACK has no item
            x, after = cell(x, h[layer : layer + 1].reshape(1, size), c[layer : layer + 1].reshape(1, size))
            hidden.append(x.reshape(1, 1, size))
            cells.append(after.reshape(1, 1, size))
        return self.joiner(x), torch.cat(hidden), torch.cat(cells)


class PredictorStep(nn.Module):
    """Tokens [B] int64, state h and c [L, B, P] to (predicted [B, J], h, c)."""

    def __init__(self, network: RNNT) -> None:
        super().__init__()
        self.architecture, self.embedding = network.architecture, network.embedding
        layers = range(self.architecture.predictor_layers)
        self.cells = nn.ModuleList(Cell(network.predictor, layer) for layer in layers)
        self.joiner = network.joiner_predictor

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> Three:
        x = self.embedding(tokens)
        hidden, cells = [], []
        for layer, cell in enumerate(self.cells):
            x, after = cell(x, h[layer], c[layer])
            hidden.append(x)
            cells.append(after)
        return self.joiner(x), torch.stack(hidden), torch.stack(cells)


class JoinerStep(nn.Module):
    """Encoded and predicted [B, J] to log-probabilities [B, V]."""

    def __init__(self, network: RNNT) -> None:
        super().__init__()
        self.architecture, self.network = network.architecture, network

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        return self.network.join(encoded, predicted)


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = nn.Parameter(weight.clone(), False), nn.Parameter(bias.clone(), False)
    return linear


Step = EncoderStep | PredictorStep | JoinerStep


def step_example(step: Step) -> tuple[tuple[Tensor, ...], tuple[dict[int, object], ...]]:
    """Inputs to trace a step with, and which of their sizes may vary."""
    sizes, rows = step.architecture, 4  # neither 0 nor 1, which a trace would hold for constant
    batch = torch.export.Dim("batch", min=1, max=BATCH)
    if isinstance(step, EncoderStep):
        state = torch.zeros(sizes.encoder_layers, 1, sizes.encoder_size)
        return (torch.zeros(sizes.subsampling_factor, sizes.mel_bins), state, state.clone()), ({}, {}, {})
    if isinstance(step, PredictorStep):
        state = torch.zeros(sizes.predictor_layers, rows, sizes.predictor_size)
        return (torch.zeros(rows, dtype=torch.int64), state, state.clone()), ({0: batch}, {1: batch}, {1: batch})
    joint = torch.zeros(rows, sizes.joiner_size)
    return (joint, joint.clone()), ({0: batch}, {0: batch})
