"""Forward-backward over the alignments of a transducer.

B: batch; T: frames; U: tokens. Row u of the lattice is position u of the tokens, over all frames: the sweep goes from
row to row, and within a row every frame is reached at once, since moving along it only adds up blanks. With c_t the
sum of the row's blanks before frame t, alpha_t - c_t is the running log-sum of (what enters the row at t) - c_t.

Graves, Sequence transduction with recurrent neural networks, 2012, equations 16 to 20.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["lattice"]

_IMPOSSIBLE = -1e30
_LEAST = -1e6  # log-probabilities are taken as at least this, so that sums over a row stay exact beside it


def lattice(blank: Tensor, emit: Tensor, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log-likelihoods and how often each cell is left by blank and by its label.

    blank, emit: [B, T, U + 1] float64 log-probabilities of leaving each cell by blank, by its label; outside an
    utterance they may hold anything. frames, lengths: [B] int64.
    Returns negative log-likelihoods [B] and the probabilities [B, T, U + 1] that a path leaves a cell by blank, by
    label: minus the gradients of the loss to ``blank`` and ``emit``.
    """
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
        entered = alpha[u - 1] + e[u - 1] - before[u]
        torch.add(entered.logcumsumexp(-1), before[u], out=alpha[u])

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
