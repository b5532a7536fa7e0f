"""The RNN-T of Ramesh et al. 2023: the encoder of contrastive predictive coding, a prediction network and a joint.

B: batch; F: feature frames (10 ms); T: stacked frames (30 ms); M: bins; H: encoder size; J: joiner size; V: pieces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import ConfigurationError
from export.networks.cpc import CPC, ContextShape, feature_layers, stacked
from export.networks.rnnt import RNNT

__all__ = ["ContextRNNT", "begin_encoder"]


class ContextRNNT(RNNT):
    """Feed-forward feature encoder and LSTM, as in :class:`export.networks.cpc.CPC`, and the rest of an RNN-T.

    The paper's: 3 x 512 and 6 x 1024, a prediction network of 2 x 1024, 2,500 pieces; its joint is one dense layer.
    Weights go under the names of ``state_dict``, not those of an ``Architecture``, which has no feature encoder.
    """

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
        architecture = Architecture(
            shape.context_layers,
            shape.context_size,
            predictor_layers,
            predictor_size,
            embedding_size,
            joiner_size,
            pieces,
            shape.bins,
            shape.stack,
        )
        super().__init__(architecture, dropout)
        self.shape = shape
        self.features = feature_layers(shape)
        self.encoder = nn.LSTM(
            shape.latent_size,
            shape.context_size,
            shape.context_layers,
            batch_first=True,
            dropout=dropout if shape.context_layers > 1 else 0.0,
        )

    def stack(self, features: Tensor) -> Tensor:
        return stacked(features, self.mean, self.scale, self.shape.stack)

    def hidden(self, stacked: Tensor) -> Tensor:
        output, _ = self.encoder(self.features(stacked))
        return self.dropout(output)

    def to_parameters(self) -> dict[str, NDArray[np.float32]]:
        return {name: value.detach().float().cpu().numpy().copy() for name, value in self.state_dict().items()}

    @torch.no_grad()
    def from_parameters(self, parameters: Mapping[str, NDArray[np.floating]]) -> ContextRNNT:
        self.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in parameters.items()})
        return self


@torch.no_grad()
def begin_encoder(network: RNNT, pretrained: CPC) -> None:
    """Give a recognizer the encoder that pre-training made: its normalization, feature layers and LSTM.

    A plain RNNT takes one that was pre-trained without feature layers, on the same bins and stacking.
    Raises ConfigurationError where the encoders differ.
    """
    a = network.architecture
    own = getattr(network, "shape", None) or ContextShape(
        a.mel_bins, a.subsampling_factor, 0, 1, a.encoder_layers, a.encoder_size
    )
    comparable = (_effective(own), _effective(pretrained.shape))
    if comparable[0] != comparable[1]:
        raise ConfigurationError(f"encoder: found {comparable[1]} pre-trained, expected {comparable[0]}")
    network.mean.copy_(pretrained.mean)
    network.scale.copy_(pretrained.scale)
    if isinstance(network, ContextRNNT):
        network.features.load_state_dict(pretrained.features.state_dict())
    network.encoder.load_state_dict(pretrained.encoder.state_dict())


def _effective(shape: ContextShape) -> dict[str, Any]:
    """Sizes that matter: without feature layers theirs does not."""
    sizes = shape.to_mapping()
    return sizes if shape.feature_layers else {**sizes, "feature_size": 0}
