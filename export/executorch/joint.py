"""The additive tanh joint as scans, a few frames at a time, its logits computed again backwards.

T: frames, a multiple of K; P: distinct prefixes; R: lattice rows; J: joiner size; V: pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan

from device_sdk.runtimes.executorch.manifest import FRAMES_AT_ONCE
from export.executorch.lstm import tanh

__all__ = ["Joint"]

Sums = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Joint:
    """frames: [T, J] encoded; prefixes: [P, J] predicted; prefix_of: [R] int64, each row's prefix; labels: [R] int64,
    each row's next token (0 after the last); weight: [V, J]; bias: [V]."""

    frames: Tensor
    prefixes: Tensor
    prefix_of: Tensor
    labels: Tensor
    weight: Tensor
    bias: Tensor

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities (nats) of blank and of the label in every cell: two of [T, R] float32."""
        transposed, places = self.weight.t().contiguous(), self._places()

        def chunk(state: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
            log_probs = torch.log_softmax(self._hidden(frames) @ transposed + self.bias, -1)
            return state.clone(), torch.gather(log_probs.reshape(FRAMES_AT_ONCE, -1), 1, places)

        _, edges = scan(chunk, torch.zeros(1), self._chunks(self.frames))  # ExecuTorch's scan must carry something
        edges = edges.reshape(-1, 2 * self.rows)
        return edges[:, : self.rows], edges[:, self.rows :]

    def gradients(self, blank: Tensor, label: Tensor, representatives: Tensor) -> dict[str, Tensor]:
        """Backward. blank, label: [T, R] float32, minus d(loss)/d(log-probability) of the two edges of every cell.

        representatives: [P] int64, a row of each prefix. Returns d(loss) by ``frames`` [T, J], by ``rows`` [R, J] (all
        of a prefix at its representative), ``weight`` [V, J] and ``bias`` [V].
        """
        transposed, places = self.weight.t().contiguous(), self._places()
        pieces, size = self.weight.shape
        count, steps = self.prefixes.shape[0], self.frames.shape[0]
        # A cell's logits move by what its edges carry less what the softmax expects of all visits to its prefix.
        visits = torch.zeros(steps, count).scatter_add(1, self.prefix_of[None].expand(steps, -1), blank + label)
        at = representatives[:, None].expand(count, size).contiguous()

        def chunk(sums: Sums, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Sums, Tensor]:
            d_rows, d_weight, d_bias = sums
            frames, edges, visits = now
            hidden = self._hidden(frames)
            probabilities = torch.exp(torch.log_softmax(hidden @ transposed + self.bias, -1))
            expected = (probabilities * visits.reshape(-1, 1)).reshape(FRAMES_AT_ONCE, -1)
            d_logits = expected.scatter_add(1, places, -edges).reshape(-1, pieces)
            d_mixed = (d_logits @ self.weight * (1.0 - hidden * hidden)).reshape(FRAMES_AT_ONCE, -1, size)
            # Sums over rows are products with ones: ExecuTorch's own walk memory column by column.
            over_frames = torch.ones(1, FRAMES_AT_ONCE) @ d_mixed.reshape(FRAMES_AT_ONCE, -1)
            over_prefixes = torch.ones_like(visits)[:, None] @ d_mixed
            following = (
                d_rows.scatter_add(0, at, over_frames.reshape(-1, size)),
                d_weight + d_logits.t() @ hidden,
                d_bias + torch.ones_like(visits).reshape(1, -1) @ d_logits,
            )
            return following, over_prefixes[:, 0].clone()

        start = torch.zeros(self.rows, size), torch.zeros(pieces, size), torch.zeros(1, pieces)
        edges = torch.cat([blank, label], 1)
        sequences = self._chunks(self.frames), self._chunks(edges), self._chunks(visits)
        (d_rows, d_weight, d_bias), d_frames = scan(chunk, start, sequences)
        return {"frames": d_frames.reshape(-1, size), "rows": d_rows, "weight": d_weight, "bias": d_bias[0]}

    @property
    def rows(self) -> int:
        return self.labels.shape[0]

    def _hidden(self, frames: Tensor) -> Tensor:
        """[K, J] -> [K * P, J]."""
        return tanh(frames[:, None] + self.prefixes[None]).reshape(-1, frames.shape[1])

    def _places(self) -> Tensor:
        """[K, 2 R]: where the blanks, then the labels, of a frame's rows stand among its P * V log-probabilities."""
        start = self.prefix_of * self.weight.shape[0]
        return torch.cat([start, start + self.labels])[None].expand(FRAMES_AT_ONCE, -1).contiguous()

    def _chunks(self, values: Tensor) -> Tensor:
        """[T, W] -> [T / K, K, W]."""
        return values.reshape(-1, FRAMES_AT_ONCE, values.shape[1])
