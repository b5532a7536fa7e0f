"""RNN-T negative log-likelihood with its analytic gradient, without ever holding a T x U x V tensor.

B: batch; T: frames; U: tokens; J: joiner size; V: pieces. A *cell* is one (utterance, frame, position); a batch has
``sum_b T_b * (U_b + 1)`` of them and nothing is computed for padding. Logits exist for a few thousand cells at a time,
so they stay in cache, and are computed again for the gradient. There, cells which no path visits with a probability
above ``pruning`` are left out: paths are narrow, so most cells are.

Graves, Sequence transduction with recurrent neural networks, 2012, equations 16 to 20.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["lattice", "rnnt_loss"]

_IMPOSSIBLE = -1e30
_CELLS = 4096


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
        joint = _Joint(encoded, predicted, weight, bias, dtype)
        exists = (torch.arange(width)[:, None] < frames[:, None, None]) & (
            torch.arange(positions) <= lengths[:, None, None]
        )
        cells = exists.reshape(-1).nonzero()[:, 0]
        labels = torch.nn.functional.pad(tokens, (0, 1))
        scored = torch.full((2, size * width * positions), _IMPOSSIBLE, dtype=torch.float64)
        for part in torch.split(cells, _CELLS):
            e, p = joint.rows(part)
            logits = joint.logits(joint.tanh(e, p)).to(torch.promote_types(dtype, torch.float32))
            total = logits.logsumexp(-1)
            label = logits.gather(1, labels.reshape(-1)[p][:, None])[:, 0]
            scored[0, part] = (logits[:, 0] - total).double()
            scored[1, part] = (label - total).double()
        blank, emit = scored.reshape(2, size, width, positions)
        emit.masked_fill_(torch.arange(positions) >= lengths[:, None, None], _IMPOSSIBLE)
        losses, blank_share, emit_share = lattice(blank, emit, frames, lengths)
        ctx.save_for_backward(encoded, predicted, weight, bias, labels, blank_share, emit_share)
        ctx.dtype, ctx.pruning = dtype, pruning
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        encoded, predicted, weight, bias, labels, blank_share, emit_share = ctx.saved_tensors
        joint = _Joint(encoded, predicted, weight, bias, ctx.dtype)
        kept = ((blank_share + emit_share) > ctx.pruning).reshape(-1).nonzero()[:, 0]
        exact = torch.promote_types(ctx.dtype, torch.float32)
        per_cell = gradients[0][:, None, None]
        to_blank = (blank_share * per_cell).reshape(-1).to(exact)
        to_label = (emit_share * per_cell).reshape(-1).to(exact)
        d_encoded = torch.zeros_like(joint.encoded, dtype=exact)
        d_predicted = torch.zeros_like(joint.predicted, dtype=exact)
        d_weight = torch.zeros_like(weight, dtype=exact)
        d_bias = torch.zeros_like(bias, dtype=exact)
        for part in torch.split(kept, _CELLS):
            e, p = joint.rows(part)
            hidden = joint.tanh(e, p)
            d_logits = joint.logits(hidden).to(exact).softmax(-1)
            b, y = to_blank[part], to_label[part]
            d_logits *= (b + y)[:, None]
            d_logits[:, 0] -= b
            d_logits.scatter_add_(1, labels.reshape(-1)[p][:, None], -y[:, None])
            d_bias += d_logits.sum(0)
            d_logits = d_logits.to(ctx.dtype)
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

    def __init__(self, encoded: Tensor, predicted: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self.frames, self.positions = encoded.shape[1], predicted.shape[1]
        self.encoded = encoded.detach().reshape(-1, encoded.shape[2]).to(dtype)
        self.predicted = predicted.detach().reshape(-1, predicted.shape[2]).to(dtype)
        self.weight, self.bias = weight.detach().to(dtype), bias.detach().to(dtype)

    def rows(self, cells: Tensor) -> tuple[Tensor, Tensor]:
        """Rows of ``encoded`` and of ``predicted`` that meet in each cell: two [C] int64."""
        frame = cells.div(self.positions, rounding_mode="floor")
        utterance = frame.div(self.frames, rounding_mode="floor")
        return frame, utterance * self.positions + cells - frame * self.positions

    def tanh(self, e: Tensor, p: Tensor) -> Tensor:
        return self.encoded.index_select(0, e).add_(self.predicted.index_select(0, p)).tanh_()

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.addmm(self.bias, hidden, self.weight.T)


def lattice(blank: Tensor, emit: Tensor, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Forward-backward over all alignments, the whole batch one anti-diagonal (frame + position) at a time.

    blank, emit: [B, T, U + 1] float64 log-probabilities of leaving each cell by blank, by its label. Cells outside an
    utterance must hold a very negative number. frames, lengths: [B] int64.
    Returns negative log-likelihoods [B] and the probabilities [B, T, U + 1] that a path leaves a cell by blank, by
    label: minus the gradients of the loss to ``blank`` and ``emit``.
    """
    size, width, positions = blank.shape
    diagonals = width + positions - 1
    position = torch.arange(positions)
    frame = torch.arange(diagonals)[:, None] - position
    inside = (frame >= 0) & (frame < width)
    index = frame.clamp(0, width - 1) * positions + position
    b = _skew(blank, index, inside)
    e = _skew(emit, index, inside)
    last = frames - 1 + lengths
    batch = torch.arange(size)

    alpha = torch.full((diagonals, size, positions + 1), _IMPOSSIBLE, dtype=blank.dtype)
    alpha[0, :, 1] = 0.0
    for n in range(1, diagonals):
        before = alpha[n - 1]
        torch.logaddexp(before[:, 1:] + b[n - 1], before[:, :-1] + _shifted(e[n - 1]), out=alpha[n, :, 1:])
    alpha = alpha[:, :, 1:]

    beta = torch.full((diagonals + 1, size, positions + 1), _IMPOSSIBLE, dtype=blank.dtype)
    ends = torch.full((diagonals, size, positions), _IMPOSSIBLE, dtype=blank.dtype)
    ends[last, batch, lengths] = b[last, batch, lengths]
    for n in range(diagonals - 1, -1, -1):
        after = beta[n + 1]
        here = torch.logaddexp(after[:, :-1] + b[n], after[:, 1:] + e[n])
        torch.maximum(here, ends[n], out=beta[n, :, :-1])
    total = beta[0, :, 0]

    finished = beta[1:, :, :-1].clone()
    finished[last, batch, lengths] = 0.0  # the final blank leaves the lattice
    by_blank = (alpha + b + finished - total[:, None]).exp_()
    by_label = (alpha + e + beta[1:, :, 1:] - total[:, None]).exp_()
    return -total, _unskew(by_blank, width), _unskew(by_label, width)


def _shifted(row: Tensor) -> Tensor:
    """Column u holds what was in column u - 1; column 0 has no predecessor."""
    return torch.nn.functional.pad(row[:, :-1], (1, 0), value=_IMPOSSIBLE)


def _skew(cells: Tensor, index: Tensor, inside: Tensor) -> Tensor:
    """[B, T, U + 1] to [diagonals, B, U + 1]."""
    flat = cells.reshape(cells.shape[0], -1)
    return flat[:, index].masked_fill_(~inside, _IMPOSSIBLE).transpose(0, 1).contiguous()


def _unskew(diagonals: Tensor, width: int) -> Tensor:
    """[diagonals, B, U + 1] to [B, T, U + 1]."""
    position = torch.arange(diagonals.shape[2])
    number = torch.arange(width)[:, None] + position
    return diagonals[number, :, position].permute(2, 0, 1).contiguous()
