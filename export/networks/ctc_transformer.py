"""A Transformer encoder trained with CTC over characters (Pelikan et al. 2023, section 4 and appendix B), in torch.

B: utterances; F: feature frames (10 ms); M: mel bins; T: frames after striding (30 ms), ceil(F / 3); D: size; V:
characters with blank 0."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.bundle.architecture import BLANK
from device_sdk.checks import check_choice, check_intervals
from device_sdk.errors import ConfigurationError
from export.networks.language_model import Block

_SHIFT_SECONDS = 0.01
_UNITS_A_SECOND = 30.0
_MOST_SHIFT, _MOST_SCALE = 60.0, 1.1  # s; of distances


@dataclass(frozen=True, slots=True)
class Alphabet:
    """Token 0 is blank; token i is ``characters[i - 1]``. A space is the boundary of words."""

    characters: str

    def __post_init__(self) -> None:
        if " " not in self.characters or len(set(self.characters)) != len(self.characters):
            raise ConfigurationError(f"alphabet: found {self.characters!r}, expected distinct ones, and the space")

    @property
    def size(self) -> int:
        """V: the characters and blank."""
        return len(self.characters) + 1

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in lower case. Characters that are not in the alphabet are boundaries of words."""
        known = "".join(c if c in self.characters else " " for c in text.lower())
        return [self.characters.index(c) + 1 for c in " ".join(known.split())]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of token ids, words one space apart; blanks are left out."""
        return " ".join("".join(self.characters[token - 1] for token in tokens if token != BLANK).split())


_ENGLISH = "abcdefghijklmnopqrstuvwxyz '-"
ALPHABETS = {
    "en": Alphabet(_ENGLISH),
    "fr": Alphabet(_ENGLISH + "àâæçéèêëîïôœùûüÿ"),
    "de": Alphabet(_ENGLISH + "äöüß"),
    "it": Alphabet(_ENGLISH + "àèéìíîòóùú"),
}
"""By language: 29 characters for English, with those of French, German and Italian added to them."""


@dataclass(frozen=True, slots=True)
class CTCTransformerShape:
    """Sizes of the network. tokens: V. size: D; feed_forward: of the inner layer; kernel, stride: of the first
    convolution, in feature frames. norm: ``pre`` normalizes the input of each sublayer, ``post`` the sum after it.
    dropout and layer_drop (the share of layers left out of a step, Fan et al. 2020) act in training only. By default it
    has the 255 M parameters of Pelikan et al. 2023."""

    tokens: int = ALPHABETS["en"].size
    mel_bins: int = 80
    size: int = 768
    feed_forward: int = 3072
    layers: int = 36
    heads: int = 4
    kernel: int = 7
    stride: int = 3
    dropout: float = 0.3
    layer_drop: float = 0.3
    norm: Literal["pre", "post"] = "pre"

    def __post_init__(self) -> None:
        check_intervals("ctc", self, "[1, inf)", "mel_bins", "feed_forward", "layers", "heads", "stride")
        check_intervals("ctc", self, "[2, inf)", "tokens", "size")
        check_intervals("ctc", self, "[0, 1)", "dropout", "layer_drop")
        check_choice("ctc.norm", self.norm, ("pre", "post"))
        if self.size % self.heads or self.size % 2:
            raise ConfigurationError(f"ctc.size: found {self.size}, expected an even multiple of heads, {self.heads}")
        if self.kernel % 2 == 0 or self.kernel < 1:
            raise ConfigurationError(f"ctc.kernel: found {self.kernel}, expected an odd number")


class _Layer(Block):
    """Self-attention and a two-layer perceptron, each with a residual connection."""

    def __init__(self, shape: CTCTransformerShape) -> None:
        super().__init__(shape.size, shape.heads, shape.feed_forward, shape.dropout)
        self.before = shape.norm == "pre"
        if self.before:
            for branch in (self.attention_output, self.outer):
                nn.init.normal_(branch.weight, std=1.0 / math.sqrt(branch.in_features * 2 * shape.layers))

    def forward(self, values: Tensor, heard: Tensor) -> Tensor:  # type: ignore[override]
        """values: [B, T, D]; heard: [B, 1, 1, T] bool, frames to attend to."""
        if self.before:
            values = values + self.attend(self.attention_norm(values), heard)
            return values + self.feed(self.feed_forward_norm(values))
        values = self.attention_norm(values + self.attend(values, heard))
        normed: Tensor = self.feed_forward_norm(values + self.feed(values))
        return normed

    def feed(self, values: Tensor) -> Tensor:
        return self.dropout(self.outer(self.dropout(functional.relu(self.inner(values)))))


class CTCTransformer(nn.Module):
    """A strided convolution with gated linear units, CAPE positions, Transformer layers, one linear layer. Features are
    normalized to mean 0 and variance 1 for each utterance and mel bin. Residual branches of ``pre`` begin smaller the
    more layers there are."""

    def __init__(self, shape: CTCTransformerShape) -> None:
        super().__init__()
        self.shape = shape
        width, padding = 2 * shape.size, shape.kernel // 2
        self.convolution = nn.Conv1d(shape.mel_bins, width, shape.kernel, shape.stride, padding)
        self.position_noise = PositionNoise(shape.stride * _SHIFT_SECONDS)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.size) if shape.norm == "pre" else nn.Identity()
        self.output = nn.Linear(shape.size, shape.tokens)
        self.dropout = nn.Dropout(shape.dropout)

    def strided(self, frames: Tensor) -> Tensor:
        """Frames of the output [B] for those of the features [B], int64."""
        return (frames + self.shape.stride - 1) // self.shape.stride

    def forward(self, features: Tensor, frames: Tensor) -> Tensor:
        """features: [B, F, M] raw log-mel, padded with anything; frames: [B] int64 in 1..F. -> log p [B, T, V], nats.
        What stands in the padding changes nothing in the frames before it."""
        values = normalized(features, frames)
        values = functional.glu(self.convolution(values.transpose(1, 2)), dim=1).transpose(1, 2)
        count = values.shape[1]
        heard = torch.arange(count, device=values.device) < self.strided(frames)[:, None]
        positions = self.position_noise(heard)
        values = values * math.sqrt(self.shape.size) + sinusoids(positions, self.shape.size)
        values = self.dropout(values)
        for layer in self.layers:
            if self.training and self.shape.layer_drop > 0 and float(torch.rand(())) < self.shape.layer_drop:
                continue
            values = layer(values, heard[:, None, None])
        scores: Tensor = self.output(self.norm(values))
        return scores.float().log_softmax(-1)

    def losses(self, features: Tensor, frames: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Negative log-likelihood of each utterance [B], nats; 0 where no path exists. tokens: [B, U] int64, padded
        with anything; lengths: [B] int64."""
        log_probs = self(features, frames).transpose(0, 1)
        return functional.ctc_loss(log_probs, tokens, self.strided(frames), lengths, BLANK, "none", zero_infinity=True)


def normalized(features: Tensor, frames: Tensor) -> Tensor:
    """[B, F, M] with mean 0 and variance 1 over the first ``frames`` [B] of each utterance; 0 after them."""
    kept = (torch.arange(features.shape[1], device=features.device) < frames[:, None])[..., None]
    count = frames[:, None, None].to(features.dtype)
    mean = (features * kept).sum(1, keepdim=True) / count
    centred = (features - mean) * kept
    variance = centred.square().sum(1, keepdim=True) / count
    return centred * torch.rsqrt(variance + 1e-5)


def sinusoids(positions: Tensor, size: int) -> Tensor:
    """Continuous augmented positional embedding (CAPE; Likhomanenko et al. 2021): seconds [B, T] -> [B, T, D], cosines,
    then sines, at D / 2 rates from 30 a second down to 30 / 10,000 radians a second."""
    exponents = torch.arange(0, size, 2, dtype=positions.dtype, device=positions.device) / size
    angles = positions[..., None] * (_UNITS_A_SECOND * torch.exp(-math.log(10_000.0) * exponents))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class PositionNoise(nn.Module):
    """Positions of frames, in seconds from the middle of the utterance. In training all of an utterance are shifted by
    up to a minute, each frame by up to half a step more (order is kept), and distances are scaled by up to a tenth, so
    that the network learns relative positions and takes utterances longer than it has seen."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    def forward(self, heard: Tensor) -> Tensor:
        """heard: [B, T] bool, true for an utterance's frames, which come first. -> [B, T] float32 seconds."""
        batch, count = heard.shape
        order = torch.arange(count, device=heard.device, dtype=torch.float32)
        middle = (heard.sum(1, keepdim=True).float() - 1.0) / 2.0
        positions = (order - middle) * self.step
        if not self.training:
            return positions
        shift = _uniform((batch, 1), heard.device) * _MOST_SHIFT
        local = _uniform((batch, count), heard.device) * (self.step / 2)
        return (positions + shift + local) * torch.exp(_uniform((batch, 1), heard.device) * math.log(_MOST_SCALE))


def _uniform(size: tuple[int, int], device: torch.device) -> Tensor:
    """-1 to 1."""
    return torch.rand(size, device=device) * 2.0 - 1.0
