"""Convolutions, LSTM and dense layers, a CTC head and an attention decoder (Gao et al. 2022, sections 2 and 5.1), in
torch.

B: utterances; F: feature frames (10 ms); M: mel bins; C: channels; T: frames after pooling, ceil(F / time_pool);
E: encoder size; U: tokens of a text; V: tokens with blank, which is the boundary of texts, too, 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.bundle.architecture import BLANK
from device_sdk.errors import ConfigurationError
from export.networks.ctc_transformer import normalized
from export.networks.location_attention import BOUNDARY, AttentionDecoder

__all__ = ["CRDNN", "CRDNNS", "CRDNNShape"]


@dataclass(frozen=True, slots=True)
class CRDNNShape:
    """Sizes of the network.

    tokens: V. channels: of each block of two convolutions, after which frequencies are pooled by ``bin_pool``.
    time_pool: frames made one before the LSTM. dense: E. location_kernel: frames of the previous attention that are
    looked at, odd.
    """

    tokens: int = 500
    mel_bins: int = 80
    channels: tuple[int, ...] = (128, 200, 256)
    kernel: int = 3
    bin_pool: int = 2
    time_pool: int = 4
    lstm_layers: int = 5
    lstm_size: int = 1024
    bidirectional: bool = True
    dense_layers: int = 2
    dense: int = 1024
    embedding: int = 128
    decoder: int = 1024
    attention: int = 1024
    location_channels: int = 10
    location_kernel: int = 201
    dropout: float = 0.15

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            values = value if name == "channels" else (value,)
            if name not in ("dropout", "bidirectional") and (not values or any(v < 1 for v in values)):
                raise ConfigurationError(f"crdnn {name}: found {value!r}, expected 1 or more")
        for name in ("kernel", "location_kernel"):
            if getattr(self, name) % 2 == 0:
                raise ConfigurationError(f"crdnn {name}: found {getattr(self, name)}, expected an odd number")
        if self.mel_bins < self.bin_pool ** len(self.channels):
            raise ConfigurationError(
                f"crdnn mel_bins: found {self.mel_bins}, expected at least {self.bin_pool ** len(self.channels)} for "
                f"{len(self.channels)} blocks"
            )
        if not 0 <= self.dropout < 1:
            raise ConfigurationError(f"crdnn dropout: found {self.dropout}, expected 0 to below 1")

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


CRDNNS: dict[str, CRDNNShape] = {
    "tiny": CRDNNShape(30, 16, (4, 6), 3, 2, 2, 1, 12, True, 1, 20, 8, 16, 14, 3, 5, 0.0),
    "small": CRDNNShape(100, 64, (16, 24), 3, 2, 4, 2, 128, True, 1, 160, 48, 160, 96, 8, 31, 0.1),
    "paper": CRDNNShape(),
}
"""tiny is for tests, small learns on one CPU. Gao et al. 2022 refers to its repository for sizes; ``paper`` has those
of the Common Voice recipe of SpeechBrain, which it builds on."""


class _Block(nn.Module):
    """Two convolutions over time and frequency, each normalized over frequencies and channels, and pooled bins."""

    def __init__(self, shape: CRDNNShape, channels_in: int, channels: int, bins: int) -> None:
        super().__init__()
        pads = shape.kernel // 2
        self.first = nn.Conv2d(channels_in, channels, shape.kernel, padding=pads)
        self.first_norm = nn.LayerNorm([bins, channels])
        self.second = nn.Conv2d(channels, channels, shape.kernel, padding=pads)
        self.second_norm = nn.LayerNorm([bins, channels])
        self.pool = shape.bin_pool
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, values: Tensor, heard: Tensor) -> Tensor:
        """values: [B, C_in, F, bins]; heard: [B, 1, F, 1], 1 for an utterance's frames. -> [B, C, F, bins // pool]."""
        for convolution, norm in ((self.first, self.first_norm), (self.second, self.second_norm)):
            normed = norm(convolution(values).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            values = functional.leaky_relu(normed) * heard  # what stands in the padding never reaches a real frame
        return self.dropout(functional.max_pool2d(values, (1, self.pool)))


class CRDNN(nn.Module):
    """The encoder with its CTC head, and the decoder. Features are normalized for each utterance and mel bin."""

    def __init__(self, shape: CRDNNShape) -> None:
        super().__init__()
        self.shape = shape
        blocks, bins, channels = [], shape.mel_bins, 1
        for width in shape.channels:
            blocks.append(_Block(shape, channels, width, bins))
            bins, channels = bins // shape.bin_pool, width
        self.blocks = nn.ModuleList(blocks)
        self.lstm = nn.LSTM(
            bins * channels,
            shape.lstm_size,
            shape.lstm_layers,
            batch_first=True,
            bidirectional=shape.bidirectional,
            dropout=shape.dropout if shape.lstm_layers > 1 else 0.0,
        )
        width = shape.lstm_size * (2 if shape.bidirectional else 1)
        dense: list[nn.Module] = []
        for _ in range(shape.dense_layers):
            dense += [
                nn.Linear(width, shape.dense),
                nn.LayerNorm(shape.dense),
                nn.LeakyReLU(),
                nn.Dropout(shape.dropout),
            ]
            width = shape.dense
        self.dense = nn.Sequential(*dense)
        self.ctc = nn.Linear(shape.dense, shape.tokens)
        self.decoder = AttentionDecoder(
            shape.tokens,
            shape.dense,
            shape.embedding,
            shape.decoder,
            shape.attention,
            shape.location_channels,
            shape.location_kernel,
            shape.dropout,
        )

    def pooled(self, frames: Tensor) -> Tensor:
        """Encoder frames [B] of feature frames [B], int64."""
        return (frames + self.shape.time_pool - 1) // self.shape.time_pool

    def heard(self, frames: Tensor, longest: int) -> Tensor:
        """[B, T] bool: which encoder frames are the utterance's."""
        return torch.arange(longest, device=frames.device) < self.pooled(frames)[:, None]

    def encode(self, features: Tensor, frames: Tensor) -> Tensor:
        """features: [B, F, M] raw log-mel, padded with anything; frames: [B] int64 in 1..F. -> [B, T, E]."""
        kept = (torch.arange(features.shape[1], device=features.device) < frames[:, None]).to(features.dtype)
        values = normalized(features, frames)[:, None]
        for block in self.blocks:
            values = block(values, kept[:, None, :, None])
        pool = self.shape.time_pool
        values = functional.pad(values, (0, 0, 0, (-values.shape[2]) % pool))
        values = functional.max_pool2d(values, (pool, 1)).permute(0, 2, 1, 3).flatten(2)
        encoded: Tensor = self.dense(self._recurrent(values, frames))
        return encoded

    def _recurrent(self, values: Tensor, frames: Tensor) -> Tensor:
        if not self.shape.bidirectional or values.shape[0] == 1 or torch.onnx.is_in_onnx_export():
            output, _ = self.lstm(values)
            return output
        # Backwards, an utterance must begin at its own end and not in the padding.
        lengths = self.pooled(frames).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False)
        unpacked, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], True, 0.0, values.shape[1])
        return unpacked

    def ctc_log_probs(self, encoded: Tensor) -> Tensor:
        """[B, T, E] to log-probabilities [B, T, V], nats."""
        scores: Tensor = self.ctc(encoded)
        return scores.float().log_softmax(-1)

    def losses(
        self, features: Tensor, frames: Tensor, tokens: Tensor, lengths: Tensor, mu: float = 0.7
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(mu CE + (1 - mu) CTC, CE, CTC) of each utterance [B], nats (Gao et al. 2022, eq. 1 to 3).

        tokens: [B, U] int64, padded with anything in 0..V-1; lengths: [B] int64. CE counts the end of the text; CTC is
        0 where no path exists.
        """
        encoded = self.encode(features, frames)
        heard = self.heard(frames, encoded.shape[1])
        scores = self.decoder(encoded, heard, tokens)
        order = torch.arange(tokens.shape[1] + 1, device=tokens.device)
        targets = functional.pad(tokens, (0, 1)).masked_fill(order == lengths[:, None], BOUNDARY)
        picked = scores.gather(-1, targets[..., None])[..., 0]
        attended = -(picked * (order <= lengths[:, None])).sum(1)
        aligned = functional.ctc_loss(
            self.ctc_log_probs(encoded).transpose(0, 1),
            tokens,
            self.pooled(frames),
            lengths,
            BLANK,
            "none",
            zero_infinity=True,
        )
        return mu * attended + (1.0 - mu) * aligned, attended, aligned

    @torch.no_grad()
    def greedy(self, features: Tensor, frames: Tensor) -> list[list[int]]:
        """Tokens by the decoder, one a step, at most one for each encoder frame."""
        encoded = self.encode(features, frames)
        found = self.decoder.greedy(encoded, self.heard(frames, encoded.shape[1]), encoded.shape[1])
        return [tokens[:most] for tokens, most in zip(found, self.pooled(frames).tolist(), strict=True)]
