"""A transducer of a Zipformer and a prediction network without state: the embeddings of the last two tokens, a grouped
convolution over them, a rectifier (Ghodsi et al. 2020).

N: batch; F: feature frames (10 ms); T: encoder frames (40 ms); M: mel bins; U: tokens; J: joiner size; V: pieces."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.bundle.architecture import BLANK
from export.networks.rnnt import ByStateName
from export.networks.zipformer import PRESETS as ENCODERS
from export.networks.zipformer import Zipformer, ZipformerShape

CONTEXT = 2
_GROUP = 4  # channels that the convolution mixes


@dataclass(frozen=True, slots=True)
class StatelessShape:
    """encoder: its sizes. A frame of its output is of 40 ms."""

    encoder: ZipformerShape
    pieces: int = 256
    joiner_size: int = 256
    embedding_size: int = 256

    @property
    def subsampling_factor(self) -> int:
        return 4

    @property
    def encoder_size(self) -> int:
        return self.encoder.size

    @property
    def mel_bins(self) -> int:
        return self.encoder.mel_bins


PRESETS = {name: StatelessShape(shape) for name, shape in ENCODERS.items()}


class StatelessTransducer(ByStateName):
    """Zipformer encoder, stateless prediction, additive tanh joint. dropout: of the encoder's output, in training."""

    def __init__(self, shape: StatelessShape, dropout: float = 0.0) -> None:
        super().__init__()
        self.architecture, pieces = shape, shape.pieces
        joiner_size, embedding_size = shape.joiner_size, shape.embedding_size
        self.encoder, self.dropout = Zipformer(shape.encoder), nn.Dropout(dropout)
        self.embedding = nn.Embedding(pieces, embedding_size)
        groups = embedding_size // _GROUP
        self.convolution = nn.Conv1d(embedding_size, embedding_size, CONTEXT, groups=groups, bias=False)
        self.joiner_encoder = nn.Linear(shape.encoder_size, joiner_size)
        self.joiner_predictor = nn.Linear(embedding_size, joiner_size)
        self.joiner_output = nn.Linear(joiner_size, pieces)

    @property
    def mean(self) -> Tensor:
        """What normalizes the features, [M]."""
        return self.encoder.mean

    @property
    def scale(self) -> Tensor:
        return self.encoder.scale

    def stack(self, features: Tensor) -> Tensor:
        """The encoder takes frames as they are."""
        return features

    def hidden(self, features: Tensor) -> Tensor:
        """Raw log-mel [N, F, M] to the encoder's output [N, T, size]."""
        return self.dropout(self.encoder(features))

    def layers(self, features: Tensor) -> list[Tensor]:
        """What :meth:`hidden` gives, alone: its stacks have rates of their own."""
        return [self.hidden(features)]

    def encode(self, features: Tensor) -> Tensor:
        """Raw log-mel [N, F, M] to the joiner's encoder term [N, T, J]."""
        return self.joiner_encoder(self.hidden(features))

    def predict(self, tokens: Tensor) -> Tensor:
        """Tokens [N, U] int64 to the joiner's prediction term [N, U + 1, J]; position 0 has seen only blank."""
        started = functional.pad(tokens, (CONTEXT, 0), value=-1)
        started[:, CONTEXT - 1] = BLANK
        return self.joiner_predictor(self.said(started))

    def said(self, tokens: Tensor) -> Tensor:
        """Tokens [N, U + 1], -1 where nothing came before, to the prediction network's output [N, U, E]."""
        embedded = self.embedding(tokens.clamp(min=0)) * (tokens >= 0).unsqueeze(-1)
        return torch.relu(self.convolution(embedded.transpose(1, 2)).transpose(1, 2))

    def step(self, tokens: Tensor, state: Sequence[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        """One token a row, [N] int64: the joiner's prediction term [N, J], and the contexts so far [1, N, 2]."""
        before = torch.full((len(tokens), CONTEXT), -1, device=tokens.device) if state is None else state[0][0]
        contexts = torch.cat([before[:, 1:], tokens[:, None]], 1)
        return self.joiner_predictor(self.said(contexts))[:, 0], [contexts[None]]

    def join(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Log-probabilities [..., V] of broadcastable terms [..., J]."""
        return self.joiner_output(torch.tanh(encoded + predicted)).log_softmax(-1)
