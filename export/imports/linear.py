"""The linear layers of a graph: matrices with their biases, whichever operators spell them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from export.imports.folder import Graph

Float = NDArray[np.float32]
_INTEGER = "MatMulInteger"


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x weight^T + bias. weight: [out, in]; bias: [out], zeros where there is none. x, y: names of values."""

    weight: Float
    bias: Float
    x: str
    y: str


def linear_layers(graph: Graph) -> list[Linear]:
    """In the order of the graph. Products of bytes, as dynamic quantization leaves them, count with their weights
    multiplied out."""
    consumers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.model.graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    producers, found = _producers(graph), []
    for node in graph.model.graph.node:
        weight, x, y = _weight(graph, node), node.input[0] if node.input else "", node.output[0] if node.output else ""
        if weight is None or weight.ndim != 2:
            continue
        if node.op_type == _INTEGER:
            x, y = _around(node, producers, consumers)
        bias = graph.constants.get(node.input[2]) if node.op_type == "Gemm" and len(node.input) > 2 else None
        if bias is None:
            bias, y = _added(graph, y, consumers, len(weight))
        found.append(Linear(weight, bias.astype(np.float32), x, y))
    return found


def _weight(graph: Graph, node: onnx.NodeProto) -> Float | None:
    """[out, in]; None for what is no product with a constant matrix."""
    if node.op_type not in ("Gemm", "MatMul", _INTEGER) or len(node.input) < 2:
        return None
    value = graph.constants.get(node.input[1])
    if value is None or value.ndim != 2:
        return None
    if node.op_type == _INTEGER:
        stem = node.input[1].removesuffix("_quantized")
        scale = graph.constants.get(f"{stem}_scale")
        zero = graph.constants.get(node.input[3]) if len(node.input) > 3 and node.input[3] else np.zeros((), np.int8)
        if scale is None or zero is None or scale.size not in (1, value.shape[1]):
            return None
        value = (value.astype(np.float32) - zero.astype(np.float32)) * scale.astype(np.float32)
    if value.dtype != np.float32:
        return None
    transposed = node.op_type == "Gemm" and attribute(node, "transB", 0) == 1
    return np.ascontiguousarray(value if transposed else value.T, np.float32)


def _producers(graph: Graph) -> dict[str, onnx.NodeProto]:
    """The node that makes each value."""
    return {name: node for node in graph.model.graph.node for name in node.output}


def _around(
    node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], consumers: dict[str, list[onnx.NodeProto]]
) -> tuple[str, str]:
    """What is quantized before a product of bytes, and what its sums become: Cast, then Mul by the scales."""
    quantizer = producers.get(node.input[0])
    y = node.output[0]
    for operator in ("Cast", "Mul"):
        after = [each for each in consumers.get(y, []) if each.op_type == operator]
        y = after[0].output[0] if after else y
    return (quantizer.input[0] if quantizer is not None and quantizer.input else node.input[0]), y


def _added(graph: Graph, y: str, consumers: dict[str, list[onnx.NodeProto]], size: int) -> tuple[Float, str]:
    """A constant vector that is added to y, and the sum's name; zeros and y where none is."""
    for node in consumers.get(y, []):
        if node.op_type == "Add" and len(node.input) == 2:
            value = graph.constants.get(node.input[0 if node.input[1] == y else 1])
            if value is not None and value.dtype == np.float32 and value.shape in ((size,), (1, size), (1, 1, size)):
                return value.reshape(size).astype(np.float32), node.output[0]
    return np.zeros(size, np.float32), y


def ancestors(graph: Graph, value: str) -> Iterator[onnx.NodeProto]:
    """The nodes that a value is made by, nearest first."""
    made = _producers(graph)
    waiting, seen = [value], set()
    while waiting:
        node = made.get(waiting.pop(0))
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting.extend(node.input)


def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    """A whole number of a node."""
    return next((int(each.i) for each in node.attribute if each.name == name), default)
