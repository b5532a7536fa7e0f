"""Hand-built ONNX graphs: streaming recognition and training, for plain onnxruntime."""

from __future__ import annotations

from device_sdk.bundle.architecture import Architecture
from export.graphs import quantised
from export.graphs.streaming import encoder, joiner, predictor
from export.graphs.training import training

__all__ = ["build_graphs", "encoder", "joiner", "predictor", "training"]


def build_graphs(architecture: Architecture) -> dict[str, bytes]:
    """Every graph of a bundle: file name -> model bytes. Weights are not inside (device_sdk.bundle.weights)."""
    return {
        "encoder.onnx": encoder(architecture),
        "predictor.onnx": predictor(architecture),
        "joiner.onnx": joiner(architecture),
        "encoder.int8.onnx": quantised.encoder(architecture),
        "predictor.int8.onnx": quantised.predictor(architecture),
        "joiner.int8.onnx": quantised.joiner(architecture),
        "training.onnx": training(architecture),
    }
