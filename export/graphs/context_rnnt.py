"""The three graphs of streaming recognition with an encoder pre-trained by contrastive predictive coding.

They have the inputs and outputs of :mod:`export.graphs.streaming`, but for ``features`` of M bins, and hold their
weights under the network's own names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.graphs.traced import traced
from export.networks.context_rnnt import ContextRNNT

__all__ = ["StreamingGraphs", "context_rnnt_graphs"]


@dataclass(frozen=True, slots=True)
class StreamingGraphs:
    """encoder: features [1, F, M], h, c [L, 1, H] -> encoded [1, F // S, J], h_next, c_next; F is a multiple of S.
    predictor: tokens [B] int64, h, c [L, B, P] -> predicted [B, J], h_next, c_next.
    joiner: encoded [B, J], predicted [B, J] -> log_probs [B, V]."""

    encoder: bytes
    predictor: bytes
    joiner: bytes


def context_rnnt_graphs(network: ContextRNNT) -> StreamingGraphs:
    """The graphs of a network, checked by onnx."""
    a = network.architecture
    states = {
        "h": torch.zeros(a.encoder_layers, 1, a.encoder_size),
        "c": torch.zeros(a.encoder_layers, 1, a.encoder_size),
    }
    encoder = traced(
        _Encoder(network),
        {"features": torch.zeros(1, 4 * a.subsampling_factor, a.mel_bins), **states},
        ["encoded", "h_next", "c_next"],
        {"features": {1: "F"}, "encoded": {1: "T"}},
    )
    several = {name: torch.zeros(a.predictor_layers, 2, a.predictor_size) for name in "hc"}
    predictor = traced(
        _Predictor(network),
        {"tokens": torch.zeros(2, dtype=torch.int64), **several},
        ["predicted", "h_next", "c_next"],
        {name: {0: "B"} for name in ("tokens", "predicted")}
        | {name: {1: "B"} for name in ("h", "c", "h_next", "c_next")},
    )
    joiner = traced(
        _Joiner(network),
        {"encoded": torch.zeros(2, a.joiner_size), "predicted": torch.zeros(2, a.joiner_size)},
        ["log_probs"],
        {name: {0: "B"} for name in ("encoded", "predicted", "log_probs")},
    )
    return StreamingGraphs(encoder, predictor, joiner)


class _Part(nn.Module):
    def __init__(self, network: ContextRNNT) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)


class _Encoder(_Part):
    def forward(self, features: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        network = self.network
        output, (h_next, c_next) = network.encoder(network.features(network.stack(features)), (h, c))
        return network.joiner_encoder(output), h_next, c_next


class _Predictor(_Part):
    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        network = self.network
        output, (h_next, c_next) = network.predictor(network.embedding(tokens[:, None]), (h, c))
        return network.joiner_predictor(output[:, 0]), h_next, c_next


class _Joiner(_Part):
    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        return self.network.join(encoded, predicted)
