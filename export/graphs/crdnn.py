"""The two graphs of a CTC-attention recognizer: the encoder of a whole utterance, and one step of the decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from export.graphs.traced import traced
from export.networks.crdnn import CRDNN

__all__ = ["CRDNNGraphs", "crdnn_graphs"]


@dataclass(frozen=True, slots=True)
class CRDNNGraphs:
    """encoder: features [1, F, M], F at least 2 -> encoded [1, T, E], keys [1, T, A], ctc_log_probs [1, T, V].
    decoder: tokens [1] int64, encoded, keys, hidden [1, 1, S], context [1, A], attention [1, T] -> log_probs [1, V],
    hidden_next, context_next, attention_next. A text begins with token 0, hidden and context of zeros, and an attention
    of 1 / T, and ends with token 0."""

    encoder: bytes
    decoder: bytes


def crdnn_graphs(network: CRDNN) -> CRDNNGraphs:
    """The graphs of a network, with its weights under their own names, checked by onnx."""
    shape, count = network.shape, 6
    encoder = traced(
        _Encoder(network),
        {"features": torch.randn(1, count * shape.time_pool, shape.mel_bins)},
        ["encoded", "keys", "ctc_log_probs"],
        {"features": {1: "F"}, **{name: {1: "T"} for name in ("encoded", "keys", "ctc_log_probs")}},
    )
    decoder = traced(
        _Step(network),
        {
            "tokens": torch.zeros(1, dtype=torch.int64),
            "encoded": torch.zeros(1, count, shape.dense),
            "keys": torch.zeros(1, count, shape.attention),
            "hidden": torch.zeros(1, 1, shape.decoder),
            "context": torch.zeros(1, shape.attention),
            "attention": torch.full((1, count), 1.0 / count),
        },
        ["log_probs", "hidden_next", "context_next", "attention_next"],
        {name: {1: "T"} for name in ("encoded", "keys", "attention", "attention_next")},
    )
    return CRDNNGraphs(encoder, decoder)


class _Part(nn.Module):
    def __init__(self, network: CRDNN) -> None:
        super().__init__()
        self.network = network
        self.train(network.training)


class _Encoder(_Part):
    def forward(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        network = self.network
        encoded = network.encode(features, torch._shape_as_tensor(features)[1:2])  # in the graph, not a constant
        return encoded, network.decoder.attention.keys(encoded), network.ctc_log_probs(encoded)


class _Step(_Part):
    def forward(
        self, tokens: Tensor, encoded: Tensor, keys: Tensor, hidden: Tensor, context: Tensor, attention: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        heard = torch.ones_like(attention, dtype=torch.bool)
        scores, state = self.network.decoder.step(tokens, encoded, keys, heard, (hidden, context, attention))
        return scores, *state
