"""The steps that recognize of a bundle that brings an encoder of its own, in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.bundle.streaming import StatelessPredictor, StreamingArchitecture
from device_sdk.errors import BundleError
from device_sdk.runtimes.streaming import open_transducer
from export.executorch.encoder import EncoderGraph
from export.executorch.steps import BATCH
from export.imports.back import with_weights

if TYPE_CHECKING:
    from device_sdk.bundle import Bundle

Weights = Mapping[str, NDArray[np.float32]]
Traced = tuple[nn.Module, tuple[Tensor, ...], tuple[object, ...]]
"""(step, inputs to trace it with, which of their sizes may vary)."""


def streaming_steps(bundle: Bundle, sizes: StreamingArchitecture) -> tuple[Weights, list[Traced]]:
    """Encoder, predictor and joiner, with the encoder's weights and random ones for all that a device exchanges, which
    are returned, too. Raises :class:`BundleError` for networks that no program can run."""
    if not isinstance(sizes.predictor, StatelessPredictor):
        raise BundleError(
            f"{bundle.path}: its prediction network is an LSTM; of what was imported, ExecuTorch programs are written "
            "of transducers with a stateless one, as zipformer2's"
        )
    rng, kept = np.random.default_rng(0), {name for name, _ in sizes.encoder}
    weights = {
        name: value if name in kept else rng.standard_normal(value.shape, np.float32)
        for name, value in bundle.weights.items()
    }
    marked, file = bundle.with_weights(weights, bundle.version), bundle.file("encoder.onnx")
    encoder = EncoderGraph(with_weights(marked, file.read_bytes()), str(file))
    features = rng.normal(-8.0, 2.0, (1, sizes.window, sizes.mel_bins)).astype(np.float32)
    states = [torch.zeros(each.shape, dtype=getattr(torch, each.kind)) for each in sizes.states]
    window = (torch.from_numpy(features), *states)
    expected, following = open_transducer(marked).encode(features[0])
    for found, wanted in zip(encoder(*window), (expected[None], *following), strict=True):
        if found.shape != wanted.shape or not np.allclose(found.numpy(), wanted, rtol=1e-3, atol=1e-3):
            raise BundleError(f"{file}: gives other values in torch than on onnxruntime; it has no ExecuTorch programs")
    batch = {0: torch.export.Dim("batch", min=1, max=BATCH)}
    contexts, joint = torch.zeros(4, sizes.predictor.context, dtype=torch.int64), torch.zeros(4, sizes.joiner_size)
    return weights, [
        (encoder, window, ((None,) * len(window),)),
        (ContextStep(sizes.predictor, weights), (contexts,), (batch,)),
        (JointStep(sizes, weights), (joint, joint.clone()), (batch, batch)),
    ]


class ContextStep(nn.Module):
    """Of a stateless prediction network: contexts [B, C] int64, -1 for none, to predicted [B, J]."""

    def __init__(self, shape: StatelessPredictor, weights: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = _parameter(weights["predictor.embedding"])
        self.convolution = _parameter(weights["predictor.convolution"]) if shape.context > 1 else None
        self.joiner = _parameter(weights["joiner.predictor.weight"])

    def forward(self, contexts: Tensor) -> Tensor:
        shape = self.shape
        x = functional.embedding(contexts.clamp(min=0), self.embedding)
        x = (x * (contexts >= 0).to(x).unsqueeze(-1)).permute(2, 1, 0)  # [D, C, B]
        if self.convolution is not None:
            # each group of channels by a matrix; of a convolution XNNPACK would store the weights otherwise
            groups = shape.size // shape.group
            x = x.reshape(groups, shape.group * shape.context, -1)
            x = torch.bmm(self.convolution.reshape(groups, shape.group, shape.group * shape.context), x)
        return functional.linear(torch.relu(x.reshape(shape.size, -1).t()), self.joiner)


class JointStep(nn.Module):
    """Encoded and predicted [B, J] to log-probabilities [B, V]."""

    def __init__(self, architecture: StreamingArchitecture, weights: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__()
        self.activation = torch.tanh if architecture.activation == "tanh" else torch.relu
        self.weight, self.bias = _parameter(weights["joiner.output.weight"]), _parameter(weights["joiner.output.bias"])

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        scores = functional.linear(self.activation(encoded + predicted), self.weight, self.bias)
        return torch.log_softmax(scores, -1)


def _parameter(values: NDArray[np.float32]) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values), False)
