"""The RNN-T in torch, next to the layout its parameters have everywhere else.

B: batch; F: feature frames (10 ms); T: stacked frames; U: tokens; M: mel bins; K: frames stacked; H: encoder
size; P: predictor size; J: joiner size; V: pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.bundle.architecture import BLANK, Architecture
from device_sdk.errors import BundleError

Array = NDArray[np.float32]

# torch holds gates as i, f, g, o; ONNX as i, o, f, c (its c is torch's g).
_TO_ONNX = (0, 3, 1, 2)
_TO_TORCH = (0, 2, 3, 1)


class RNNT(nn.Module):
    """LSTM encoder over stacked log-mel, LSTM prediction network, additive tanh joint (Rao et al. 2023, section 3).
    ``dropout`` acts between encoder layers, on the encoder's output and on the embedding, in training only."""

    mean: Tensor
    scale: Tensor

    def __init__(self, architecture: Architecture, dropout: float = 0.0) -> None:
        super().__init__()
        a = architecture
        self.architecture = a
        self.register_buffer("mean", torch.zeros(a.mel_bins))
        self.register_buffer("scale", torch.ones(a.mel_bins))
        self.encoder = encoder_lstm(a.mel_bins * a.subsampling_factor, a.encoder_size, a.encoder_layers, dropout)
        self.embedding = nn.Embedding(a.pieces, a.embedding_size)
        self.predictor = nn.LSTM(a.embedding_size, a.predictor_size, a.predictor_layers, batch_first=True)
        self.joiner_encoder = nn.Linear(a.encoder_size, a.joiner_size)
        self.joiner_predictor = nn.Linear(a.predictor_size, a.joiner_size, bias=False)
        self.joiner_output = nn.Linear(a.joiner_size, a.pieces)
        self.dropout = nn.Dropout(dropout)

    def stack(self, features: Tensor) -> Tensor:
        """Raw log-mel [B, F, M] to normalized, stacked input [B, T, K * M] with T = F // K."""
        return stacked(features, self.mean, self.scale, self.architecture.subsampling_factor)

    def hidden(self, stacked: Tensor) -> Tensor:
        """Stacked input [B, T, K * M] to the encoder's output [B, T, H]."""
        output, _ = self.encoder(stacked)
        return self.dropout(output)

    def layers(self, stacked: Tensor) -> list[Tensor]:
        """What :meth:`hidden` gives, and before it what the layers below give, lowest first."""
        encoder, hidden, outputs = self.encoder, stacked, list[Tensor]()
        zeros = stacked.new_zeros(1, stacked.shape[0], encoder.hidden_size)
        for layer in range(encoder.num_layers):
            weights: list[Tensor] = [encoder.get_parameter(f"{part}_l{layer}") for part in _PARTS]
            hidden, _, _ = torch.lstm(hidden, (zeros, zeros), weights, True, 1, 0.0, self.training, False, True)
            hidden = self.dropout(hidden)
            outputs.append(hidden)
        return outputs

    def encode(self, features: Tensor) -> Tensor:
        """Raw log-mel [B, F, M] to the joiner's encoder term [B, T, J]."""
        return self.joiner_encoder(self.hidden(self.stack(features)))

    def predict(self, tokens: Tensor) -> Tensor:
        """Tokens [B, U] int64 to the joiner's prediction term [B, U + 1, J]; position 0 has seen only blank."""
        started = nn.functional.pad(tokens, (1, 0), value=BLANK)
        output, _ = self.predictor(self.dropout(self.embedding(started)))
        return self.joiner_predictor(self.dropout(output))

    def step(self, tokens: Tensor, state: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """One token a row, [B] int64: the joiner's prediction term [B, J], and h and c, [layers, B, P]."""
        given = None if state is None else (state[0], state[1])
        output, moved = self.predictor(self.embedding(tokens[:, None]), given)
        return self.joiner_predictor(output)[:, 0], list(moved)

    def join(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Log-probabilities [..., V] of broadcastable terms [..., J]."""
        return self.joiner_output(torch.tanh(encoded + predicted)).log_softmax(-1)

    def to_parameters(self) -> dict[str, Array]:
        """Parameters and constants under their public names, float32, LSTMs in ONNX layout."""
        named: dict[str, Tensor] = {"features.mean": self.mean, "features.scale": self.scale}
        for name in self.architecture.parameter_shapes():
            first, *second = self.parameters_of(name)
            merged = first + second[0] if second else first
            named[name] = merged if name in _PLAIN else onnx_gates(merged)
        return {name: value.detach().to(torch.float32).cpu().numpy().copy() for name, value in named.items()}

    def parameters_of(self, name: str) -> list[nn.Parameter]:
        """What a public parameter is made of here: an LSTM's merged bias has two, all others one."""
        if name in _PLAIN:
            return [self.get_parameter(_PLAIN[name])]
        network, layer, part = name.split(".")
        own = {"W": _PARTS[:1], "R": _PARTS[1:2], "B": _PARTS[2:]}[part]
        return [self.get_parameter(f"{network}.{each}_l{layer}") for each in own]

    def to_gradients(self) -> dict[str, Array]:
        """What the last backward pass left, by public parameter name, float32, LSTMs in ONNX layout; 0 where nothing.
        Both of torch's biases have the same gradient, which is that of the merged one."""
        named = {}
        for name in self.architecture.parameter_shapes():
            value = self.parameters_of(name)[0]
            gradient = torch.zeros_like(value) if value.grad is None else value.grad.detach()
            named[name] = gradient if name in _PLAIN else onnx_gates(gradient)
        return {name: value.to(torch.float32).numpy().copy() for name, value in named.items()}

    @torch.no_grad()
    def from_parameters(self, parameters: Mapping[str, NDArray[np.floating]]) -> RNNT:
        """Take parameters and constants by their public names, in this network's dtype. Returns self. Raises
        BundleError for a name that is missing or a shape that is not the architecture's."""
        a = self.architecture
        for name, shape in (a.constant_shapes() | a.parameter_shapes()).items():
            if name not in parameters:
                raise BundleError(f"weights: {name} is missing; expected shape {shape}")
            if tuple(parameters[name].shape) != shape:
                raise BundleError(f"weights: {name} has shape {tuple(parameters[name].shape)}, expected {shape}")
        given = {name: torch.from_numpy(np.array(value)) for name, value in parameters.items()}
        self.mean.copy_(given["features.mean"])
        self.scale.copy_(given["features.scale"])
        for name in a.parameter_shapes():
            first, *second = self.parameters_of(name)
            first.copy_(given[name] if name in _PLAIN else _permute(given[name], _TO_TORCH))
            for value in second:
                value.zero_()
        return self


class ByStateName(nn.Module):
    """Parameters and constants under the names of ``state_dict``, float32."""

    def to_parameters(self) -> dict[str, Array]:
        return {name: value.detach().float().cpu().numpy().copy() for name, value in self.state_dict().items()}

    @torch.no_grad()
    def from_parameters(self, parameters: Mapping[str, NDArray[np.floating]]) -> Self:
        """Take what :meth:`to_parameters` gave. Returns self. Raises BundleError for other names or shapes."""
        try:
            self.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in parameters.items()})
        except RuntimeError as error:
            raise BundleError(f"weights: are not those of this network ({str(error)[:200]})") from error
        return self


def encoder_lstm(width: int, size: int, layers: int, dropout: float) -> nn.LSTM:
    return nn.LSTM(width, size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)


def stacked(features: Tensor, mean: Tensor, scale: Tensor, count: int) -> Tensor:
    """[B, F, M] to [B, F // count, count * M], normalized by mean [M] and 1 / standard deviation [M]."""
    kept = features.shape[1] // count
    normalized = (features[:, : kept * count] - mean) * scale
    return normalized.reshape(features.shape[0], kept, count * features.shape[2])


_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_PLAIN = {
    "predictor.embedding": "embedding.weight",
    "joiner.encoder.weight": "joiner_encoder.weight",
    "joiner.encoder.bias": "joiner_encoder.bias",
    "joiner.predictor.weight": "joiner_predictor.weight",
    "joiner.output.weight": "joiner_output.weight",
    "joiner.output.bias": "joiner_output.bias",
}


def onnx_gates(rows: Tensor) -> Tensor:
    """Rows [4H, ...] of an LSTM layer from torch's order of gates to ONNX's."""
    return _permute(rows, _TO_ONNX)


def _permute(rows: Tensor, order: tuple[int, ...]) -> Tensor:
    gates = rows.reshape(4, rows.shape[0] // 4, *rows.shape[1:])
    return gates[list(order)].reshape(rows.shape)
