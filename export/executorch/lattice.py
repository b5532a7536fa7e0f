"""The RNN-T lattice as two scans over its diagonals, in float64, in the form :mod:`export.graphs.lattice` explains."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from export.executorch.lstm import reverse_scan

__all__ = ["lattice"]

IMPOSSIBLE = -1e30


def lattice(blank: Tensor, label: Tensor, frames: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T: frames, padded; U: tokens, padded; N: hypotheses.

    blank, label: [T, U + 1, N] float64 log-probabilities of the two edges that leave node (t, u). frames: [1] int64,
    how many of T are the utterance's; lengths: [N] int64. A hypothesis ends at node (frames, length). Nodes with larger
    u are no ancestors of it, and no label is emitted behind the last frame, so padding of both kinds is exact.
    Returns negative log-likelihoods [N] and occupancies of both kinds of edges, each [T, U + 1, N].
    """
    width, columns, count = blank.shape
    diagonals = width + columns - 1
    label = torch.where(torch.arange(width)[:, None, None] < frames, label, IMPOSSIBLE)
    blank, label = (_by_diagonal(edge, diagonals) for edge in (blank, label))
    none = torch.full((1, count), IMPOSSIBLE, dtype=torch.float64)
    first = torch.cat([torch.zeros(1, count, dtype=torch.float64), none.expand(columns - 1, count)])

    def advance(alpha: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        stay, move = alpha + now[0], torch.cat([none, (alpha + now[1])[:-1]])
        larger = torch.maximum(stay, move)
        total = larger + torch.log(torch.exp(torch.minimum(stay, move) - larger) + 1.0)
        return total, total.clone()

    _, alpha = scan(advance, first, (blank, label))
    ends = torch.arange(1, diagonals + 1)[:, None] == frames + lengths
    tops = torch.arange(columns)[:, None] == lengths
    final = torch.logical_and(ends[:, None], tops[None]).to(torch.float64)
    likelihood = (final * alpha).sum((0, 1))
    share = torch.exp(torch.cat([first[None], alpha[:-1]]) + blank - alpha)
    nothing = torch.zeros(1, count, dtype=torch.float64)

    def retreat(occupancy: Tensor, now: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        here = occupancy + now[0]
        by_blank = here * now[1]
        by_label = torch.cat([(here - by_blank)[1:], nothing])
        return by_blank + by_label, (by_blank.clone(), by_label.clone())

    by_blank, by_label = reverse_scan(retreat, torch.zeros(columns, count, dtype=torch.float64), (final, share))
    return -likelihood, _by_frame(by_blank, width), _by_frame(by_label, width)


def _by_diagonal(edges: Tensor, diagonals: int) -> Tensor:
    """[T, U + 1, N] -> [T + U, U + 1, N] with row n, column u holding (t = n - u, u), impossible outside the lattice.

    Each column is padded to T + U + 1 entries and read back with a period of T + U, which shifts column u by u.
    """
    _, columns, count = edges.shape
    padding = torch.full((columns, columns, count), IMPOSSIBLE, dtype=torch.float64)
    flat = torch.cat([edges.permute(1, 0, 2), padding], 1).reshape(-1, count)
    return flat[: columns * diagonals].reshape(columns, diagonals, count).permute(1, 0, 2)


def _by_frame(edges: Tensor, width: int) -> Tensor:
    """The inverse of :func:`_by_diagonal`: [T + U, U + 1, N] -> [T, U + 1, N]."""
    diagonals, columns, count = edges.shape
    flat = edges.permute(1, 0, 2).reshape(-1, count)
    padded = torch.cat([flat, torch.zeros(columns, count, dtype=torch.float64)])
    return padded.reshape(columns, diagonals + 1, count)[:, :width].permute(1, 0, 2)
