"""A torch network as an ONNX graph for plain onnxruntime, where no graph is built by hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

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
    try:
        with TemporaryDirectory() as folder, torch.no_grad(), warnings.catch_warnings():
            file = Path(folder) / "graph.onnx"
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
            graph = file.read_bytes()
    finally:
        network.train(was_training)
    onnx.checker.check_model(onnx.load_from_string(graph), full_check=True)
    return graph
