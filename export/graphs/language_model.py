"""The second pass' language model as one ONNX graph with its weights inside, for plain onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from device_sdk.errors import BundleError
from export.networks.language_model_shape import LanguageModelShape

__all__ = ["language_model_graph"]

OPSET, IR_VERSION = 18, 10


def language_model_graph(
    parameters: Mapping[str, NDArray[np.floating]], shape: LanguageModelShape, words_digest: str
) -> onnx.ModelProto:
    """The graph of a language model from its parameters (names and shapes of ``shape.parameter_shapes()``).

    B: sentences; L: words, at most ``positions``; both free. words, targets: int64 [B, L]. log_probs: float32 [B, L],
    nats, log p(targets[b, l] | words[b, :l + 1]); padding at the end changes nothing before it (causal).
    Metadata: ``positions`` and ``words_digest``, the word list whose ids the graph speaks. Checked by onnx before it
    is returned. Raises BundleError for a parameter that is missing, unknown, of another shape or not finite.
    """
    expected = shape.parameter_shapes()
    found = {name: value.shape for name, value in parameters.items()}
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise BundleError(f"language model {name}: found {found.get(name)}, expected {expected.get(name)}")
        if not np.isfinite(parameters[name]).all():
            raise BundleError(f"language model {name}: found values that are not finite; train it again")
    graph = _Graph(parameters)
    length = graph.op("Gather", graph.op("Shape", "words"), graph.integers(1))
    order = graph.op("Range", graph.integers(0), length, graph.integers(1))
    later = graph.op("Less", graph.op("Unsqueeze", order, graph.integers([1])), order)
    mask = graph.op("Where", later, graph.floats(-np.inf), graph.floats(0.0))

    embedded = graph.op("Gather", graph.weight("embedding"), "words")
    scaled = graph.op("Mul", embedded, graph.floats(shape.size**0.5))
    values = graph.op("Add", scaled, graph.op("Gather", graph.weight("positions"), order))
    for index in range(shape.blocks):
        name = f"blocks.{index}"
        attended = _attention(graph, name, values, mask, shape.size, shape.heads)
        values = graph.op("Add", values, attended)
        inner = graph.linear(f"{name}.inner", graph.norm(f"{name}.feed_forward_norm", values))
        values = graph.op("Add", values, graph.linear(f"{name}.outer", _gelu(graph, inner)))
    transposed = graph.op("Transpose", graph.weight("embedding"), perm=[1, 0])
    logits = graph.op("Add", graph.op("MatMul", graph.norm("norm", values), transposed), graph.weight("bias"))
    # log_softmax only at the targets: the normalizer and one logit a word, not a second [B, L, n + 1] table.
    chosen = graph.op("GatherElements", logits, graph.op("Unsqueeze", "targets", graph.integers([2])), axis=2)
    normalizer = graph.op("ReduceLogSumExp", logits, graph.integers([2]), keepdims=1)
    graph.op("Squeeze", graph.op("Sub", chosen, normalizer), graph.integers([2]), output="log_probs")

    proto = helper.make_graph(
        graph.nodes,
        "language_model",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["B", "L"]) for name in ("words", "targets")],
        [helper.make_tensor_value_info("log_probs", TensorProto.FLOAT, ["B", "L"])],
        graph.initializers,
    )
    result = helper.make_model(proto, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="idiolect")
    result.ir_version = IR_VERSION
    helper.set_model_props(result, {"positions": str(shape.positions), "words_digest": words_digest})
    onnx.checker.check_model(result, full_check=True)
    return result


def _attention(graph: _Graph, name: str, values: str, mask: str, size: int, heads: int) -> str:
    """Causal self-attention over [B, L, size]."""
    projected = graph.linear(f"{name}.projections", graph.norm(f"{name}.attention_norm", values))
    split = graph.op("Reshape", projected, graph.integers([0, 0, 3, heads, size // heads]))
    stacked = graph.op("Transpose", split, perm=[2, 0, 3, 1, 4])
    query, key, value = (graph.op("Gather", stacked, graph.integers(part), axis=0) for part in range(3))
    products = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    masked = graph.op("Add", graph.op("Mul", products, graph.floats((size // heads) ** -0.5)), mask)
    attended = graph.op("MatMul", graph.op("Softmax", masked, axis=-1), value)
    joined = graph.op("Reshape", graph.op("Transpose", attended, perm=[0, 2, 1, 3]), graph.integers([0, 0, size]))
    return graph.linear(f"{name}.attention_output", joined)


def _gelu(graph: _Graph, values: str) -> str:
    half = graph.op("Mul", values, graph.floats(0.5))
    error = graph.op("Erf", graph.op("Mul", values, graph.floats(2**-0.5)))
    return graph.op("Mul", half, graph.op("Add", error, graph.floats(1.0)))


class _Graph:
    """Nodes and initializers under construction; every method answers a tensor's name."""

    def __init__(self, weights: Mapping[str, NDArray[np.floating]]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._known: set[str] = set()

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"{kind}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, name: str, transpose: bool = False) -> str:
        value = self.weights[name]
        return self._initializer(name, np.ascontiguousarray(value.T if transpose else value, dtype=np.float32))

    def floats(self, value: float) -> str:
        return self._initializer(f"float.{value!r}", np.array(value, dtype=np.float32))

    def integers(self, value: int | Sequence[int]) -> str:
        return self._initializer(f"integers.{value!r}", np.array(value, dtype=np.int64))

    def linear(self, name: str, values: str) -> str:
        product = self.op("MatMul", values, self.weight(f"{name}.weight", transpose=True))
        return self.op("Add", product, self.weight(f"{name}.bias"))

    def norm(self, name: str, values: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", values, scale, bias, axis=-1, epsilon=1e-5)

    def _initializer(self, name: str, value: NDArray[np.generic]) -> str:
        if name not in self._known:
            self._known.add(name)
            self.initializers.append(numpy_helper.from_array(value, name))
        return name
