"""RNN-T negative log-likelihood with its analytic gradient, without ever holding a T x U x V tensor.

B: batch; T: frames; U: tokens; J: joiner size; V: pieces. A *cell* is one (utterance, frame, position); nothing is
computed for padding. Logits exist for some thousand cells at a time, and are computed again for the gradient, where
cells which no path visits with a probability above ``pruning`` are left out. On CUDA, with Triton, what is not a matrix
product is done by the kernels of :mod:`export.losses.kernels`."""

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from export.losses import rows

_CELLS = 4096
_LOGITS_ON_CUDA = 1 << 25  # at a time: 128 MB in float32
_IMPOSSIBLE = -1e30
_LEAST = -1e6  # log-probabilities are taken as at least this, so that sums over a row stay exact beside it


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

    encoded: [B, T, J]; predicted: [B, U + 1, J]; weight: [V, J]; bias: [V]; tokens: [B, U] int64, padded with anything
    in 0..V-1; frames: [B] int64 in 1..T; lengths: [B] int64 in 0..U. Blank is 0. dtype: of the joint's matrix products
    (default: that of ``encoded``); the lattice is float64 always. pruning: occupancy at or below which a cell's
    gradient is taken as zero. Raises ValueError for shapes that do not fit."""
    width, positions = encoded.shape[1], predicted.shape[1]
    if int(frames.min()) < 1 or int(frames.max()) > width:
        raise ValueError(f"frames: found {int(frames.min())}..{int(frames.max())}, expected 1..{width}")
    if int(lengths.max()) > tokens.shape[1] or positions != tokens.shape[1] + 1:
        found = f"{tokens.shape[1]} columns for lengths up to {int(lengths.max())} and {positions} positions"
        raise ValueError(f"tokens: {found}; expected one position more than tokens")
    given = (encoded, predicted, weight, bias, tokens, frames, lengths, dtype or encoded.dtype, pruning)
    loss: Tensor = _Transduction.apply(*given)  # type: ignore[no-untyped-call]
    return loss


class _Transduction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        encoded, predicted, weight, bias, tokens, frames, lengths, dtype, pruning = given
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
        sums = (joint.encoded, joint.predicted, weight, bias)
        d_encoded, d_predicted, d_weight, d_bias = (torch.zeros_like(each, dtype=exact) for each in sums)
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
        found = (d_encoded, encoded), (d_predicted, predicted), (d_weight, weight), (d_bias, bias)
        return *(each.reshape(given.shape).to(given.dtype) for each, given in found), *(None,) * 5


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


def lattice(blank: Tensor, emit: Tensor, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log-likelihoods and how often each cell is left by blank and by its label (Graves 2012, eq. 16 to 20).

    Row u of the lattice is position u of the tokens, over all frames: the sweep goes from row to row, and within a row
    every frame is reached at once, since moving along it only adds up blanks. With c_t the sum of the row's blanks
    before frame t, alpha_t - c_t is the running log-sum of (what enters the row at t) - c_t.

    blank, emit: [B, T, U + 1] float64 log-probabilities of leaving each cell by blank, by its label; outside an
    utterance they may hold anything. frames, lengths: [B] int64. Returns negative log-likelihoods [B] and the
    probabilities [B, T, U + 1] that a path leaves a cell by blank, by label: minus the gradients of the loss to
    ``blank`` and ``emit``."""
    size, width, positions = blank.shape
    row = torch.arange(positions, device=blank.device)[:, None, None]
    inside = (torch.arange(width, device=blank.device) < frames[:, None]) & (row <= lengths[:, None])
    b = blank.permute(2, 0, 1).clamp(min=_LEAST).masked_fill(~inside, 0.0)
    e = emit.permute(2, 0, 1).clamp(min=_LEAST).masked_fill(~(inside & (row < lengths[:, None])), _IMPOSSIBLE)
    before = b.cumsum(-1) - b
    batch = torch.arange(size, device=blank.device)

    alpha = torch.empty_like(b)
    alpha[0] = before[0]
    for u in range(1, positions):
        torch.add((alpha[u - 1] + e[u - 1] - before[u]).logcumsumexp(-1), before[u], out=alpha[u])

    beta = torch.full((positions + 1, size, width), _IMPOSSIBLE, dtype=b.dtype, device=b.device)
    ends = torch.full_like(b, _IMPOSSIBLE)
    ends[lengths, batch, frames - 1] = b[lengths, batch, frames - 1]
    for u in range(positions - 1, -1, -1):
        left = torch.maximum(beta[u + 1] + e[u], ends[u]) + before[u]
        torch.sub(left.flip(-1).logcumsumexp(-1).flip(-1), before[u], out=beta[u])
    total = beta[0, :, 0]

    onward = torch.nn.functional.pad(beta[:-1, :, 1:], (0, 1), value=_IMPOSSIBLE)
    onward[lengths, batch, frames - 1] = 0.0  # the final blank leaves the lattice
    by_blank = (alpha + b + onward - total[:, None]).exp_().masked_fill_(~inside, 0.0)
    by_label = (alpha + e + beta[1:] - total[:, None]).exp_()
    return -total, by_blank.permute(1, 2, 0).contiguous(), by_label.permute(1, 2, 0).contiguous()
