"""Hand-built ONNX graphs: streaming recognition and training, for plain onnxruntime."""

from __future__ import annotations

from device_sdk.bundle.architecture import Architecture
from export.graphs.streaming import encoder, joiner, predictor
from export.graphs.training import training

__all__ = ["build_graphs", "encoder", "joiner", "predictor", "training"]


def build_graphs(architecture: Architecture) -> dict[str, bytes]:
    """Every graph of a bundle: file name -> model bytes. Weights are not inside (device_sdk.bundle.weights)."""
    return {
        "encoder.onnx": encoder(architecture),
        "predictor.onnx": predictor(architecture),
        "joiner.onnx": joiner(architecture),
        "training.onnx": training(architecture),
    }
