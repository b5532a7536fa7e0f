"""RNN-T negative log-likelihood with its analytic gradient, without ever holding a T x U x V tensor.

B: batch; T: frames; U: tokens; J: joiner size; V: pieces. A *cell* is one (utterance, frame, position); a batch has
``sum_b T_b * (U_b + 1)`` of them and nothing is computed for padding. Logits exist for some thousand cells at a time
(on a CPU so that they stay in cache, on a GPU so that they keep it busy), and are computed again for the gradient.
There, cells which no path visits with a probability above ``pruning`` are left out: paths are narrow, so most cells
are. On CUDA, where Triton is installed, what is not a matrix product is done by the kernels of
:mod:`export.losses.kernels`, one pass over the logits each.
"""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from export.losses import rows
from export.losses.lattice import lattice

__all__ = ["rnnt_loss"]

_CELLS = 4096
_LOGITS_ON_CUDA = 1 << 25  # at a time: 128 MB in float32


def rnnt_loss(
    encoded: Tensor,
    predicted: Tensor,
    weight: Tensor,
    bias: Tensor,
    tokens: Tensor,
    frames: Tensor,
    lengths: Tensor,
    *,
    dtype: torch.dtype | None = None,
    pruning: float = 0.0,
) -> Tensor:
    """Negative log-likelihoods [B] (nats, float64) of ``tokens`` under a tanh joint.

    encoded: [B, T, J]; predicted: [B, U + 1, J]; weight: [V, J]; bias: [V]; tokens: [B, U] int64, padded with
    anything in 0..V-1; frames: [B] int64 in 1..T; lengths: [B] int64 in 0..U. Blank is 0.
    dtype: of the joint's matrix products (default: that of ``encoded``); the lattice is float64 always.
    pruning: occupancy at or below which a cell's gradient is taken as zero.
    """
    if int(frames.min()) < 1 or int(frames.max()) > encoded.shape[1]:
        raise ValueError(f"frames: found {int(frames.min())}..{int(frames.max())}, expected 1..{encoded.shape[1]}")
    if int(lengths.max()) > tokens.shape[1] or predicted.shape[1] != tokens.shape[1] + 1:
        raise ValueError(
            f"tokens: {tokens.shape[1]} columns for lengths up to {int(lengths.max())} and "
            f"{predicted.shape[1]} prediction positions; expected one position more than tokens"
        )
    loss: Tensor = _Transduction.apply(
        encoded, predicted, weight, bias, tokens, frames, lengths, dtype or encoded.dtype, pruning
    )  # type: ignore[no-untyped-call]
    return loss


class _Transduction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        encoded: Tensor,
        predicted: Tensor,
        weight: Tensor,
        bias: Tensor,
        tokens: Tensor,
        frames: Tensor,
        lengths: Tensor,
        dtype: torch.dtype,
        pruning: float,
    ) -> Tensor:
        size, width, positions = encoded.shape[0], encoded.shape[1], predicted.shape[1]
        joint = _Joint(encoded, predicted, weight, bias, tokens, dtype)
        position = torch.arange(positions, device=encoded.device)
        frame = torch.arange(width, device=encoded.device)[:, None]
        exists = (frame < frames[:, None, None]) & (position <= lengths[:, None, None])
        cells = exists.reshape(-1).nonzero()[:, 0]
        scored = torch.zeros((2, size * width * positions), dtype=torch.float64, device=encoded.device)
        for part in joint.split(cells):
            e, p = joint.places(part)
            found = joint.rows.score(joint.logits(joint.hidden(e, p)), joint.labels[p])
            scored[0, part], scored[1, part] = (value.double() for value in found)
        blank, label = scored.reshape(2, size, width, positions)
        losses, blank_share, emit_share = lattice(blank, label, frames, lengths)
        ctx.save_for_backward(encoded, predicted, weight, bias, tokens, blank_share, emit_share)
        ctx.dtype, ctx.pruning = dtype, pruning
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        encoded, predicted, weight, bias, tokens, blank_share, emit_share = ctx.saved_tensors
        joint = _Joint(encoded, predicted, weight, bias, tokens, ctx.dtype)
        kept = ((blank_share + emit_share) > ctx.pruning).reshape(-1).nonzero()[:, 0]
        exact = torch.promote_types(ctx.dtype, torch.float32)
        per_cell = gradients[0][:, None, None]
        to_blank = (blank_share * per_cell).reshape(-1).to(exact)
        to_label = (emit_share * per_cell).reshape(-1).to(exact)
        d_encoded = torch.zeros_like(joint.encoded, dtype=exact)
        d_predicted = torch.zeros_like(joint.predicted, dtype=exact)
        d_weight = torch.zeros_like(weight, dtype=exact)
        d_bias = torch.zeros_like(bias, dtype=exact)
        for part in joint.split(kept):
            e, p = joint.places(part)
            hidden = joint.hidden(e, p)
            logits = joint.logits(hidden)
            d_logits = joint.rows.gradient(logits, joint.labels[p], to_blank[part], to_label[part], ctx.dtype)
            d_bias += d_logits.sum(0, dtype=exact)
            d_weight += d_logits.T @ hidden
            d_hidden = (d_logits @ joint.weight).to(exact)
            hidden = hidden.to(exact)
            d_hidden *= 1 - hidden * hidden
            d_encoded.index_add_(0, e, d_hidden)
            d_predicted.index_add_(0, p, d_hidden)
        return (
            d_encoded.reshape(encoded.shape).to(encoded.dtype),
            d_predicted.reshape(predicted.shape).to(predicted.dtype),
            d_weight.to(weight.dtype),
            d_bias.to(bias.dtype),
            *(None,) * 5,
        )


class _Joint:
    """The joint over chosen cells. A cell's number is (utterance * T + frame) * (U + 1) + position."""

    def __init__(
        self, encoded: Tensor, predicted: Tensor, weight: Tensor, bias: Tensor, tokens: Tensor, dtype: torch.dtype
    ) -> None:
        self.frames, self.positions = encoded.shape[1], predicted.shape[1]
        self.encoded = encoded.detach().reshape(-1, encoded.shape[2]).to(dtype)
        self.predicted = predicted.detach().reshape(-1, predicted.shape[2]).to(dtype)
        self.weight, self.bias = weight.detach().to(dtype), bias.detach().to(dtype)
        self.labels = torch.nn.functional.pad(tokens, (0, 1)).reshape(-1)
        self.rows = rows_on(encoded.device)

    def split(self, cells: Tensor) -> tuple[Tensor, ...]:
        on_cuda = max(_CELLS, _LOGITS_ON_CUDA // self.weight.shape[0])
        return torch.split(cells, on_cuda if cells.is_cuda else _CELLS)

    def places(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of ``encoded`` and of ``predicted`` that meet in each cell: two [C] int64."""
        frame = cells.div(self.positions, rounding_mode="floor")
        utterance = frame.div(self.frames, rounding_mode="floor")
        return frame, utterance * self.positions + cells - frame * self.positions

    def hidden(self, e: Tensor, p: Tensor) -> Tensor:
        hidden: Tensor = self.rows.join(self.encoded, self.predicted, e, p)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.addmm(self.bias, hidden, self.weight.T)


def rows_on(device: torch.device) -> ModuleType:
    """The module whose ``join``, ``score`` and ``gradient`` run on a device."""
    if device.type == "cuda" and find_spec("triton") is not None:
        from export.losses import kernels

        return kernels
    return rows
