"""Hand-built ONNX graphs: streaming recognition and training, for plain onnxruntime."""

from __future__ import annotations

from device_sdk.bundle.architecture import Architecture, frozen, frozen_file, training_file
from device_sdk.bundle.streaming import subsets_of
from export.graphs.streaming import encoder, frozen_layers, joiner, predictor
from export.graphs.training import subset_training, training

__all__ = ["build_graphs", "encoder", "frozen_layers", "joiner", "predictor", "subset_training", "training"]


def build_graphs(architecture: Architecture) -> dict[str, bytes]:
    """Every graph of a bundle: file name -> model bytes. Weights are not inside (device_sdk.bundle.weights)."""
    subsets = subsets_of(architecture)
    beneath = {subset: frozen(architecture, subset) for subset in subsets}
    return {
        "encoder.onnx": encoder(architecture),
        "predictor.onnx": predictor(architecture),
        "joiner.onnx": joiner(architecture),
        "encoder.int8.onnx": encoder(architecture, int8=True),
        "predictor.int8.onnx": predictor(architecture, int8=True),
        "joiner.int8.onnx": joiner(architecture, int8=True),
        **{training_file(subset): subset_training(architecture, subset) for subset in subsets},
        **{frozen_file(subset): frozen_layers(architecture, layers) for subset, layers in beneath.items() if layers},
    }
