"""Hand-built ONNX graphs: streaming recognition and training, for plain onnxruntime."""

from device_sdk.bundle.architecture import Architecture, frozen_file, frozen_part, training_file
from device_sdk.bundle.streaming import subsets_of
from device_sdk.runtimes.phones import FILE as PHONES_FILE
from export.graphs.ctc import head_parameters
from export.graphs.phones import phone_gradient
from export.graphs.streaming import encoder, frozen_layers, joiner, predictor
from export.graphs.training import training

__all__ = ["build_graphs", "encoder", "frozen_layers", "joiner", "predictor", "training"]


def build_graphs(architecture: Architecture, ctc: bytes | None = None) -> dict[str, bytes]:
    """Every graph of a bundle: file name -> model bytes. Weights are not inside (device_sdk.bundle.weights), but those
    of a CTC head, whose graph is ``ctc``, in that of its gradients."""
    subsets = subsets_of(architecture)
    beneath = {subset: frozen_part(architecture, subset) for subset in subsets}
    return {
        **{f"{build.__name__}.onnx": build(architecture) for build in (encoder, predictor, joiner)},
        **{f"{build.__name__}.int8.onnx": build(architecture, int8=True) for build in (encoder, predictor, joiner)},
        **{training_file(subset): training(architecture, subset) for subset in subsets},
        **{frozen_file(subset): frozen_layers(architecture, layers) for subset, layers in beneath.items() if layers},
        **({} if ctc is None else {PHONES_FILE: phone_gradient(head_parameters(ctc), architecture)}),
    }
