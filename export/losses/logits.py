"""RNN-T negative log-likelihood of given logits, for networks whose joint is their own.

Where the joint is the additive tanh one, :func:`export.losses.rnnt.rnnt_loss` never holds what is given here.
B: batch; T: frames; U: tokens; V: pieces.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from export.losses.lattice import lattice
from export.losses.rows import log_shares

__all__ = ["rnnt_loss_of_logits"]


def rnnt_loss_of_logits(logits: Tensor, tokens: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
    """Negative log-likelihoods [B] (nats, float64) of ``tokens``.

    logits: [B, T, U + 1, V], finite, not normalized; tokens: [B, U] int64, padded with anything in 0..V-1; frames: [B]
    int64 in 1..T; lengths: [B] int64 in 0..U. Blank is 0. Besides the logits one tensor of their size is held, which
    becomes their gradient, so that can be taken once. Raises ValueError for shapes that do not fit.
    """
    if int(frames.min()) < 1 or int(frames.max()) > logits.shape[1]:
        raise ValueError(f"frames: found {int(frames.min())}..{int(frames.max())}, expected 1..{logits.shape[1]}")
    if int(lengths.max()) > tokens.shape[1] or logits.shape[2] != tokens.shape[1] + 1:
        raise ValueError(
            f"tokens: {tokens.shape[1]} columns for lengths up to {int(lengths.max())} and {logits.shape[2]} positions "
            "of logits; expected one position more than tokens"
        )
    loss: Tensor = _OfLogits.apply(logits, tokens, frames, lengths)  # type: ignore[no-untyped-call]
    return loss


class _OfLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, frames: Tensor, lengths: Tensor) -> Tensor:
        exact = logits.detach().to(torch.promote_types(logits.dtype, torch.float32))
        shares = exact.softmax(-1)
        cells = shares.shape[:3]
        labels = torch.nn.functional.pad(tokens, (0, 1))[:, None].expand(cells)
        rows = exact.reshape(-1, exact.shape[3]), shares.reshape(-1, shares.shape[3]), labels.reshape(-1)
        blank, label = (value.double().reshape(cells) for value in log_shares(*rows))
        losses, to_blank, to_label = lattice(blank, label, frames, lengths)
        ctx.save_for_backward(shares, labels, to_blank, to_label)
        ctx.dtype = logits.dtype
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        shares, labels, to_blank, to_label = ctx.saved_tensors
        per_cell = gradients[0][:, None, None]
        b, y = (to_blank * per_cell).to(shares.dtype), (to_label * per_cell).to(shares.dtype)
        shares.mul_((b + y)[..., None])  # in place: there may be no room for another
        shares[..., 0] -= b
        shares.scatter_add_(3, labels[..., None], -y[..., None])
        return shares.to(ctx.dtype), None, None, None
