"""An imported encoder's graph in torch, operator by operator, so that ExecuTorch can run it."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import quiet_onnxruntime

Attributes = Mapping[str, Any]
Numbers = Sequence[Any]
"""For each input of a node: the numbers that it always is, None where it varies."""
Operator = Callable[..., Tensor]
"""(attributes, numbers, *inputs) to the only output."""


class EncoderGraph(nn.Module):
    """Takes inputs and gives outputs in the graph's order."""

    def __init__(self, model: onnx.ModelProto, source: str) -> None:
        """model: with its weights inside and every shape fixed. source: for messages. Raises :class:`BundleError` for a
        node whose operator is none of :data:`OPERATORS`."""
        super().__init__()
        graph = _folded(model).graph
        self.inputs, self.outputs = ([each.name for each in edges] for edges in (graph.input, graph.output))
        fixed = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
        tensors = {name: torch.tensor(value) for name, value in fixed.items()}
        self.steps: list[tuple[Operator, Attributes, Numbers, list[str], str]] = []
        for node in graph.node:
            operator = None if node.domain or len(node.output) > 1 else OPERATORS.get(node.op_type)
            if operator is None:
                raise BundleError(
                    f"{source}: node {node.name!r} ({node.op_type}) has no place in an ExecuTorch program; expected "
                    f"operators among {', '.join(OPERATORS)}"
                )
            attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            numbers = [fixed[name].tolist() if name in fixed and fixed[name].ndim < 2 else None for name in node.input]
            inputs = list(node.input)
            if node.op_type == "Gemm" and inputs[1] in fixed and not attributes.get("transB"):
                attributes["transB"], inputs[1] = 1, f"{inputs[1]}.transposed"  # once, not in every chunk
                tensors[inputs[1]] = torch.tensor(fixed[node.input[1]].T.copy())
            self.steps.append((operator, attributes, numbers, inputs, node.output[0]))
        used = {name for _, _, _, inputs, _ in self.steps for name in inputs} & tensors.keys()
        self.names = sorted(used)
        self.fixed = nn.ParameterList([nn.Parameter(tensors[name], False) for name in self.names])

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        known: dict[str, Any] = {"": None, **dict(zip(self.names, self.fixed, strict=True))}
        known |= dict(zip(self.inputs, given, strict=True))
        for operator, attributes, numbers, inputs, output in self.steps:
            known[output] = operator(attributes, numbers, *(known[name] for name in inputs))
        return tuple(known[name] for name in self.outputs)


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without what follows from shapes and weights alone: onnxruntime works it out."""
    onnxruntime = quiet_onnxruntime()
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder, "folded.onnx"))
        options.log_severity_level = 4
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _plain(function: Callable[..., Tensor]) -> Operator:
    return lambda _, __, *inputs: function(*inputs)


def _clip(_: Attributes, numbers: Numbers, x: Tensor, *__: Tensor) -> Tensor:
    least, most = (*numbers[1:], None, None)[:2]
    return torch.clamp(x, least, most)


def _convolution(a: Attributes, _: Numbers, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    function: Callable[..., Tensor] = functional.conv1d if x.ndim == 3 else functional.conv2d
    return function(x, weight, bias, a["strides"], a["pads"][: x.ndim - 2], a["dilations"], a["group"])


def _gather(a: Attributes, numbers: Numbers, x: Tensor, index: Tensor) -> Tensor:
    axis = a.get("axis", 0)
    return x.select(axis, numbers[1]) if isinstance(numbers[1], int) else x.index_select(axis, index)


def _pad(_: Attributes, numbers: Numbers, x: Tensor, *__: Tensor) -> Tensor:
    pads = numbers[1]
    return functional.pad(x, [side for axis in reversed(range(x.ndim)) for side in pads[axis :: x.ndim]])


def _slice(_: Attributes, numbers: Numbers, x: Tensor, *__: Tensor) -> Tensor:
    _, starts, ends, axes, *steps = numbers
    for at, axis in enumerate(axes):
        x = x[(slice(None),) * (axis % x.ndim) + (slice(starts[at], ends[at], steps[0][at] if steps else 1),)]
    return x


def _unsqueeze(_: Attributes, numbers: Numbers, x: Tensor, *__: Tensor) -> Tensor:
    for axis in sorted(numbers[1]):
        x = x.unsqueeze(axis)
    return x


OPERATORS: dict[str, Operator] = {
    **{name: _plain(getattr(torch, name.lower())) for name in ("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Abs", "Exp")},
    **{name: _plain(getattr(torch, name.lower())) for name in ("Log", "Sigmoid", "Tanh", "Less", "MatMul", "Where")},
    "Or": _plain(torch.logical_or),
    "Clip": _clip,
    "Concat": lambda a, _, *inputs: torch.cat(inputs, a["axis"]),
    "Conv": _convolution,
    "Expand": lambda _, numbers, x, *__: x * torch.ones(numbers[1], dtype=x.dtype),
    "Gather": _gather,
    "GatherElements": lambda a, _, x, index: x.gather(a["axis"], index),
    "Gemm": lambda a, _, x, w, bias=None: functional.linear(x, w if a.get("transB") else w.t(), bias),
    "Pad": _pad,
    "ReduceMean": lambda a, _, x: x.mean(a["axes"], bool(a.get("keepdims", 1))),
    "ReduceSum": lambda a, numbers, x, *_: x.sum(numbers[1], bool(a.get("keepdims", 1))),
    "Reshape": lambda _, numbers, x, *__: x.reshape([size or x.shape[axis] for axis, size in enumerate(numbers[1])]),
    "Slice": _slice,
    "Softmax": lambda a, _, x: x.softmax(a["axis"]),
    "Transpose": lambda a, _, x: x.permute(a["perm"]),
    "Unsqueeze": _unsqueeze,
}
"""Those that streaming Zipformers have."""
