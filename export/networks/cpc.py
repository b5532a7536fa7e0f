"""Contrastive predictive coding: an encoder that learns from speech without text (Ramesh et al. 2023, appendix A.1).

B: utterances; F: feature frames (10 ms); M: bins; S: frames stacked; T: stacked frames, F // S; D: size of a latent; H:
size of the context; K: future steps predicted; N: candidates, the true latent and N - 1 negatives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.bundle.architecture import Architecture
from device_sdk.checks import check_intervals
from device_sdk.errors import ConfigurationError
from export.networks.rnnt import RNNT, ByStateName, encoder_lstm, stacked


@dataclass(frozen=True, slots=True)
class ContextShape:
    """Sizes of the encoder that pre-training and recognition share: feed-forward layers, then an LSTM. bins: M; stack:
    S. Without feature layers the LSTM reads the stacked frames themselves, as the encoder of
    ``export.networks.rnnt.RNNT`` does."""

    bins: int = 256
    stack: int = 3
    feature_layers: int = 3
    feature_size: int = 512
    context_layers: int = 6
    context_size: int = 1024

    def __post_init__(self) -> None:
        check_intervals("context", self, "[0, inf)", "feature_layers")
        check_intervals("context", self, "[1, inf)", "bins", "stack", "feature_size", "context_layers", "context_size")

    @property
    def latent_size(self) -> int:
        """D."""
        return self.feature_size if self.feature_layers else self.bins * self.stack


CPCS: dict[str, ContextShape] = {
    "tiny": ContextShape(feature_layers=2, feature_size=16, context_layers=1, context_size=24),
    "small": ContextShape(feature_layers=2, feature_size=128, context_layers=2, context_size=160),
    "paper": ContextShape(),
}
"""tiny is for tests, small learns on one CPU, paper is Ramesh et al. 2023's."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """What is predicted, and against what. steps: K; candidates: N; temperature: kappa. Ramesh et al. 2023 does not
    print these three; the steps are those of van den Oord et al. (2018)."""

    steps: int = 12
    candidates: int = 32
    temperature: float = 1.0

    def __post_init__(self) -> None:
        check_intervals("contrast", self, "[1, inf)", "steps")
        check_intervals("contrast", self, "[2, inf)", "candidates")
        check_intervals("contrast", self, "(0, inf)", "temperature")


def feature_layers(shape: ContextShape) -> nn.Sequential:
    """The feature encoder f_enc: linear layers with ReLU; the identity where there are none."""
    widths = pairwise([shape.bins * shape.stack, *[shape.feature_size] * shape.feature_layers])
    return nn.Sequential(*(layer for wide, narrow in widths for layer in (nn.Linear(wide, narrow), nn.ReLU())))


class CPC(nn.Module):
    """Feature encoder z = f_enc(x), context encoder c = f_ar(z), and one linear prediction of z for each step ahead.
    Only ``features`` and ``encoder`` (with ``mean`` and ``scale``) go on to recognition."""

    mean: Tensor
    scale: Tensor

    def __init__(self, shape: ContextShape, contrast: Contrast = Contrast()) -> None:
        super().__init__()
        self.shape, self.contrast = shape, contrast
        self.register_buffer("mean", torch.zeros(shape.bins))
        self.register_buffer("scale", torch.ones(shape.bins))
        self.features = feature_layers(shape)
        self.encoder = nn.LSTM(shape.latent_size, shape.context_size, shape.context_layers, batch_first=True)
        predictions = (nn.Linear(shape.context_size, shape.latent_size) for _ in range(contrast.steps))
        self.predictions = nn.ModuleList(predictions)

    def latents(self, features: Tensor) -> Tensor:
        """Raw features [B, F, M] to z [B, T, D]."""
        z: Tensor = self.features(stacked(features, self.mean, self.scale, self.shape.stack))
        return z

    def losses(
        self, features: Tensor, frames: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """InfoNCE of each utterance [B], summed over steps, nats; and the share of right guesses at each step [K].

            L = sum_k 1 / (T - k) sum_t -log softmax_n(z_n . (W_k c_t + b_k) / kappa)[z_{t+k}]

        frames: [B] int64, T of each utterance; steps that do not fit in one add nothing to it. Negatives are drawn with
        replacement from the other frames of the same utterance, by ``generator``."""
        z = self.latents(features)
        c, _ = self.encoder(z)
        candidates, total = self.candidates(frames, z.shape[1], generator), z.new_zeros(z.shape[0])
        right = []
        for step, prediction in enumerate(self.predictions, 1):
            length = z.shape[1] - step
            if length < 1:
                right.append(total.new_zeros(()))
                continue
            # All products with one matrix product; the candidates are then picked, so no latent is copied N times.
            products = torch.bmm(prediction(c[:, :length]), z.transpose(1, 2)) / self.contrast.temperature
            scores, counts = products.gather(2, candidates[:, step:]), (frames - step).clamp(min=0)
            heard = torch.arange(length, device=z.device) < counts[:, None]
            losses = -functional.log_softmax(scores, -1)[..., 0] * heard
            total = total + losses.sum(1) / counts.clamp(min=1)
            hits = (scores.detach().argmax(-1) == 0) & heard
            right.append(hits.sum() / heard.sum().clamp(min=1))
        return total, torch.stack(right)

    def candidates(self, frames: Tensor, longest: int, generator: torch.Generator | None = None) -> Tensor:
        """Frames to choose from for each true one, [B, T, N] int64: itself first, then others of its utterance."""
        own = torch.arange(longest, device=frames.device)[None, :, None].expand(frames.shape[0], longest, 1)
        size = (frames.shape[0], longest, self.contrast.candidates - 1)
        draws = torch.rand(size, generator=generator, device=frames.device)
        length = frames[:, None, None]
        away = 1 + (draws * (length - 1)).long().clamp(max=(length - 2).clamp(min=0))
        return torch.cat([own, (own + away) % length], 2)


class ContextRNNT(ByStateName, RNNT):
    """Feed-forward feature encoder and LSTM, as in :class:`export.networks.cpc.CPC`, and the rest of an RNN-T. The
    paper's: 3 x 512 and 6 x 1024, a prediction network of 2 x 1024, 2,500 pieces; its joint is one dense layer. Weights
    go under the names of ``state_dict``, not those of an ``Architecture``, which has no feature encoder."""

    def __init__(
        self,
        shape: ContextShape,
        *,
        predictor_layers: int = 2,
        predictor_size: int = 1024,
        embedding_size: int = 512,
        joiner_size: int = 512,
        pieces: int = 2500,
        dropout: float = 0.0,
    ) -> None:
        own = (predictor_layers, predictor_size, embedding_size, joiner_size, pieces)
        super().__init__(Architecture(shape.context_layers, shape.context_size, *own, shape.bins, shape.stack), dropout)
        self.shape = shape
        self.features = feature_layers(shape)
        self.encoder = encoder_lstm(shape.latent_size, shape.context_size, shape.context_layers, dropout)

    def hidden(self, stacked: Tensor) -> Tensor:
        output, _ = self.encoder(self.features(stacked))
        return self.dropout(output)

    def layers(self, stacked: Tensor) -> list[Tensor]:
        return super().layers(self.features(stacked))


@torch.no_grad()
def begin_encoder(network: RNNT, pretrained: CPC) -> None:
    """Give a recognizer the encoder that pre-training made: its normalization, feature layers and LSTM. A plain RNNT
    takes one that was pre-trained without feature layers, on the same bins and stacking. Raises ConfigurationError
    where the encoders differ."""
    a = network.architecture
    plain = ContextShape(a.mel_bins, a.subsampling_factor, 0, 1, a.encoder_layers, a.encoder_size)
    expected, found = (  # without feature layers their size does not matter
        asdict(shape) | ({} if shape.feature_layers else {"feature_size": 0})
        for shape in (getattr(network, "shape", plain), pretrained.shape)
    )
    if found != expected:
        raise ConfigurationError(f"encoder: found {found} pre-trained, expected {expected}")
    network.mean.copy_(pretrained.mean)
    network.scale.copy_(pretrained.scale)
    if isinstance(network, ContextRNNT):
        network.features.load_state_dict(pretrained.features.state_dict())
    network.encoder.load_state_dict(pretrained.encoder.state_dict())
