"""A transducer of a Zipformer and a prediction network without state: the embeddings of the last two tokens, a grouped
convolution over them, a rectifier (Ghodsi et al. 2020).

N: batch; F: feature frames (10 ms); T: encoder frames (40 ms); M: mel bins; U: tokens; J: joiner size; V: pieces.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.bundle.architecture import BLANK
from export.networks.zipformer import Zipformer, ZipformerShape

__all__ = ["CONTEXT", "StatelessTransducer"]

CONTEXT = 2
_GROUP = 4  # channels that the convolution mixes


class StatelessTransducer(nn.Module):
    """Zipformer encoder, stateless prediction, additive tanh joint."""

    def __init__(self, shape: ZipformerShape, pieces: int, joiner_size: int, embedding_size: int) -> None:
        super().__init__()
        self.shape, self.pieces, self.joiner_size, self.embedding_size = shape, pieces, joiner_size, embedding_size
        self.encoder = Zipformer(shape)
        self.embedding = nn.Embedding(pieces, embedding_size)
        groups = embedding_size // _GROUP
        self.convolution = nn.Conv1d(embedding_size, embedding_size, CONTEXT, groups=groups, bias=False)
        self.joiner_encoder = nn.Linear(shape.size, joiner_size)
        self.joiner_predictor = nn.Linear(embedding_size, joiner_size)
        self.joiner_output = nn.Linear(joiner_size, pieces)

    def hidden(self, features: Tensor) -> Tensor:
        """Raw log-mel [N, F, M] to the encoder's output [N, T, size]."""
        return self.encoder(features)

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

    def join(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """Log-probabilities [..., V] of broadcastable terms [..., J]."""
        return self.joiner_output(torch.tanh(encoded + predicted)).log_softmax(-1)
