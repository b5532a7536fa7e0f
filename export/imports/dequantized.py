"""Products of bytes, as dynamic quantization leaves them, as products of the float32 values that the bytes stand for.

    (x as bytes) W_bytes -> integers -> Cast -> Mul by both scales      becomes      x W,  W = (W_bytes - zero) scale

Steps move what is kept in float32; a small one would move no byte (cosine of what is kept 0.08)."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from export.graphs.builder import live_nodes
from export.imports.folder import Graph

_PLAIN = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}


def dequantized(graph: Graph) -> onnx.ModelProto:
    """A copy; products that are of no such form stay as they are."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    nodes = list(model.graph.node)
    makers = {name: node for node in nodes for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    plain: dict[int, onnx.NodeProto] = {}  # by the product that they take the place of
    for node in nodes:
        weight = _weight(graph, node) if node.op_type in _PLAIN else None
        maker, last = makers.get(node.input[0]) if node.input else None, node
        for kind in ("Cast", "Mul"):
            following = readers.get(last.output[0], [])
            last = following[0] if len(following) == 1 and following[0].op_type == kind else node
        if weight is None or maker is None or maker.op_type != "DynamicQuantizeLinear" or last is node:
            continue
        name = node.input[1].removesuffix("_quantized")
        made = onnx.NodeProto(op_type=_PLAIN[node.op_type], name=node.name, attribute=node.attribute)
        made.input.extend([maker.input[0], name])
        made.output.append(last.output[0])
        plain[id(last)] = made
        if all(tensor.name != name for tensor in model.graph.initializer):
            model.graph.initializer.append(numpy_helper.from_array(weight, name))
    if plain:
        kept = [plain.get(id(node), node) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(live_nodes(kept, (each.name for each in model.graph.output)))
        used = {name for node in model.graph.node for name in node.input}
        held = [tensor for tensor in model.graph.initializer if tensor.name in used]
        del model.graph.initializer[:]
        model.graph.initializer.extend(held)
    return model


def _weight(graph: Graph, node: onnx.NodeProto) -> NDArray[np.float32] | None:
    """In the layout of the float product; None where it is no constant with a scale."""
    value = graph.constants.get(node.input[1])
    scale = graph.constants.get(f"{node.input[1].removesuffix('_quantized')}_scale")
    zero = graph.constants.get(node.input[3]) if len(node.input) > 3 and node.input[3] else np.zeros(1, np.int8)
    if value is None or scale is None or zero is None:
        return None
    axis = value.ndim - 1 if node.op_type == "MatMulInteger" else 0
    if not {scale.size, zero.size} <= {1, value.shape[axis]}:
        return None
    shape = [-1 if each == axis else 1 for each in range(value.ndim)]
    offset, step = zero.astype(np.float32).reshape(shape), scale.astype(np.float32).reshape(shape)
    return np.ascontiguousarray((value.astype(np.float32) - offset) * step, np.float32)
