"""Continuous augmented positional embedding (CAPE; Likhomanenko et al. 2021): sinusoids of positions in seconds.

B: utterances; T: frames; D: size of the embedding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["PositionNoise", "sinusoids"]

_UNITS_A_SECOND = 30.0


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """positions: [B, T] seconds. -> [B, T, D]: cosines, then sines, at D / 2 rates from 30 a second down to 30 / 10,000
    radians a second."""
    exponents = torch.arange(0, size, 2, dtype=positions.dtype, device=positions.device) / size
    angles = positions[..., None] * (_UNITS_A_SECOND * torch.exp(-math.log(10_000.0) * exponents))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class PositionNoise(nn.Module):
    """Positions of frames, in seconds from the middle of the utterance.

    In training all of an utterance are shifted by up to ``most_shift`` seconds, each frame by up to half a step more
    (order is kept), and distances are scaled by up to ``most_scale``, so that the network learns relative positions and
    takes utterances longer than it has seen.
    """

    def __init__(self, step: float, most_shift: float = 60.0, most_scale: float = 1.1) -> None:
        super().__init__()
        self.step, self.most_shift, self.log_scale = step, most_shift, math.log(most_scale)

    def forward(self, heard: Tensor) -> Tensor:
        """heard: [B, T] bool, true for an utterance's frames, which come first. -> [B, T] float32 seconds."""
        batch, count = heard.shape
        order = torch.arange(count, device=heard.device, dtype=torch.float32)
        middle = (heard.sum(1, keepdim=True).float() - 1.0) / 2.0
        positions = (order - middle) * self.step
        if not self.training:
            return positions
        shift = _uniform((batch, 1), heard.device) * self.most_shift
        local = _uniform((batch, count), heard.device) * (self.step / 2)
        return (positions + shift + local) * torch.exp(_uniform((batch, 1), heard.device) * self.log_scale)


def _uniform(size: tuple[int, int], device: torch.device) -> Tensor:
    """-1 to 1."""
    return torch.rand(size, device=device) * 2.0 - 1.0
