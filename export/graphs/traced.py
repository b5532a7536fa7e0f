"""A torch network as an ONNX graph for plain onnxruntime, where no graph is built by hand."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence

import onnx
import torch
from torch import Tensor, nn

__all__ = ["traced"]

_OPSET = 17


def traced(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Sequence[str],
    free: Mapping[str, Mapping[int, str]],
) -> bytes:
    """The graph of ``network(*inputs)`` in evaluation mode, with its weights under the network's own names.

    inputs: an example of each input by name, in order. free: name of an input or output -> axis -> name of its length,
    for axes of any length; all others are as long as in the examples. Checked by onnx before it is returned.
    """
    was_training = network.training
    network.eval()
    file = io.BytesIO()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                network,
                tuple(inputs.values()),
                file,
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={name: dict(axes) for name, axes in free.items()},
                opset_version=_OPSET,
                dynamo=False,
            )
    finally:
        network.train(was_training)
    model = onnx.load_from_string(file.getvalue())
    onnx.checker.check_model(model, full_check=True)
    return file.getvalue()
