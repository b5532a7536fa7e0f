"""The CTC head of the second pass: phones from what a frozen encoder heard.

B: batch; T: encoder frames; J: joiner size; S: cells; C: phones, with blank 0."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from export.networks.rnnt import Array, onnx_gates


class CtcHead(nn.Module):
    """A linear map of the joiner's encoder term, as a joiner with nothing said before, and beside it LSTM layers that
    hear the utterance in both directions: the second pass need not hurry. phones: C."""

    def __init__(self, joiner_size: int, phones: int, cells: int = 56, dropout: float = 0.1) -> None:
        super().__init__()
        self.plain = nn.Linear(joiner_size, phones, bias=False)
        self.forward_lstm = nn.LSTM(joiner_size, cells, batch_first=True)
        self.backward_lstm = nn.LSTM(joiner_size, cells, batch_first=True)
        self.output = nn.Linear(2 * cells, phones)
        self.dropout = nn.Dropout(dropout)

    def forward(self, encoded: Tensor, frames: Tensor) -> Tensor:
        """Encoder terms [B, T, J], of which ``frames`` [B] int64 are no padding, to log-probabilities [B, T, C]."""
        reversed_ = _reversed(encoded, frames)
        ahead, behind = self.forward_lstm(encoded)[0], _reversed(self.backward_lstm(reversed_)[0], frames)
        heard = self.output(self.dropout(torch.cat([ahead, behind], -1)))
        return (self.plain(torch.tanh(encoded)) + heard).float().log_softmax(-1)

    def to_parameters(self) -> dict[str, Array]:
        """By public name, float32; LSTM layers as [4S, J], [4S, S] and [4S] in ONNX's order of gates."""
        named: dict[str, Tensor] = {"plain.weight": self.plain.weight}
        for name, layer in (("forward", self.forward_lstm), ("backward", self.backward_lstm)):
            bias = layer.get_parameter("bias_ih_l0") + layer.get_parameter("bias_hh_l0")
            parts = {"W": layer.get_parameter("weight_ih_l0"), "R": layer.get_parameter("weight_hh_l0"), "B": bias}
            named |= {f"{name}.{part}": onnx_gates(value) for part, value in parts.items()}
        named |= {"output.weight": self.output.weight, "output.bias": self.output.bias}
        return {name: value.detach().float().cpu().numpy().copy() for name, value in named.items()}


def _reversed(values: Tensor, frames: Tensor) -> Tensor:
    """[B, T, ...] with each row's first ``frames`` in the opposite order, padding where it was."""
    order = torch.arange(values.shape[1], device=values.device)[None].expand(len(values), -1)
    order = torch.where(order < frames[:, None], frames[:, None] - 1 - order, order)
    return values.gather(1, order[..., None].expand_as(values))
