"""A small builder of ONNX graphs: values are names, constants are shared, weights are slots of one packed buffer."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from device_sdk.bundle import quantized
from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.quantized import QUANTIZED_FILE
from device_sdk.bundle.streaming import AnyArchitecture
from device_sdk.bundle.weights import PACKED_FILE, architecture_digest, layout
from device_sdk.runtimes.onnxruntime import ARCHITECTURE_KEY

FLOAT, DOUBLE, INT32, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT32, TensorProto.INT64
BOOL = TensorProto.BOOL
OPSET, IR_VERSION = 18, 10
MICROSOFT = "com.microsoft"
"""Domain of onnxruntime's own operators."""

Value = str
"""The name of a tensor in the graph."""
Shape = Sequence[int | str]
Body = Callable[["GraphBuilder", list[Value], list[Value]], tuple[list[Value], list[Value]]]


@dataclass
class _Names:
    """What the main graph and the bodies of its scans share: names, constants and weights in use."""

    prefix: str = ""
    count: int = 0
    constants: dict[tuple[bytes, tuple[int, ...], str], Value] = field(default_factory=dict)
    initializers: list[TensorProto] = field(default_factory=list)
    packed: set[str] = field(default_factory=set)

    def fresh(self, stem: str) -> Value:
        self.count += 1
        return f"{self.prefix}{stem}_{self.count}"


def external(name: str, file: str, kind: int, shape: Sequence[int], offset: int, length: int) -> TensorProto:
    """An initializer that lies in a buffer of the bundle, from byte ``offset`` on."""
    tensor = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, text in (("location", file), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=text)
    return tensor


class GraphBuilder:
    """Collects nodes. Operators are called by their ONNX name: ``g.op("Add", a, b)``."""

    def __init__(
        self,
        architecture: AnyArchitecture | None,
        matrices: Collection[str] | None = None,
        weights: Mapping[str, NDArray[np.floating]] | None = None,
        prefix: str = "",
        _names: _Names | None = None,
    ) -> None:
        """architecture: of a bundle's RNN-T; None for other networks. matrices: names of the parameters that the
        graph's int8 buffer holds; None is all. weights: to put into the graph, in place of slots of the buffer. prefix:
        of the names that nodes are given, where others are in the graph already."""
        self._architecture, self._matrices, self._weights = architecture, matrices, weights
        self._names = _names or _Names(prefix)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []

    @property
    def architecture(self) -> Architecture:
        """Of an LSTM RNN-T, which most graphs here are of."""
        assert isinstance(self._architecture, Architecture)
        return self._architecture

    @property
    def sizes(self) -> AnyArchitecture:
        """Of any transducer."""
        assert self._architecture is not None
        return self._architecture

    def input(self, name: str, shape: Shape, kind: int = FLOAT) -> Value:
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def output(self, name: str, value: Value, shape: Shape, kind: int = FLOAT) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))

    def append(self, node: onnx.NodeProto) -> None:
        """A node under its own names."""
        self._nodes.append(node)

    def hold(self, name: str, value: NDArray[np.generic]) -> None:
        """A constant under a name of its own."""
        self._names.initializers.append(numpy_helper.from_array(np.asarray(value, order="C"), name))

    def keep(self, name: str, shape: Shape, kind: int = FLOAT) -> None:
        """A value as an output, under its own name."""
        self._outputs.append(helper.make_tensor_value_info(name, kind, list(shape)))

    def weight(self, name: str) -> Value:
        """A parameter or constant as an initializer, by default in the packed buffer: constant to the runtime."""
        if name in self._names.packed:
            return name
        self._names.packed.add(name)
        if self._weights is None:
            offset, shape = layout(self.sizes)[name]
            self._external(name, PACKED_FILE, FLOAT, shape, offset, 4 * prod(shape))
        else:
            value = np.ascontiguousarray(self._weights[name], np.float32)
            self._names.initializers.append(numpy_helper.from_array(value, name))
        return name

    def rounded(self, name: str) -> Value:
        """A matrix [N, K] of ``weights``, which lies in the graph as int8 with a scale a row: a quarter of the bytes.
        The runtime multiplies them once, while it loads the graph."""
        assert self._weights is not None
        value = np.asarray(self._weights[name], np.float32)
        scales = quantized.scales_of(value)[:, None]
        self.hold(integers := f"{name}.int8", np.rint(value / scales).astype(np.int8))
        self.hold(scale := f"{name}.scale", scales)
        return self.multiply(self.cast(integers, FLOAT), scale)

    def quantized(self, name: str, lead: int = 0) -> tuple[Value, Value]:
        """A parameter as int8 [K, N] (embeddings: uint8 [V, E]) and its scales, initializers in the int8 buffer. lead:
        axes of size 1 in front of both shapes. Scales are [N]; [] for embeddings."""
        values, scale = f"{name}.int8", f"{name}.scale"
        if values not in self._names.packed:
            self._names.packed.add(values)
            slot, front = quantized.layout(self.sizes, self._matrices)[name], [1] * lead
            kind = TensorProto.UINT8 if slot.scales == 1 else TensorProto.INT8
            self._external(values, QUANTIZED_FILE, kind, [*front, *slot.shape], slot.values, prod(slot.shape))
            scales = [] if slot.scales == 1 else [slot.scales]
            self._external(scale, QUANTIZED_FILE, FLOAT, [*front, *scales], slot.scale, 4 * slot.scales)
        return values, scale

    def _external(self, name: str, file: str, kind: int, shape: Sequence[int], offset: int, length: int) -> None:
        self._names.initializers.append(external(name, file, kind, shape, offset, length))

    def constant(self, value: ArrayLike, dtype: DTypeLike) -> Value:
        array = np.asarray(value, dtype)
        key = (array.tobytes(), array.shape, array.dtype.str)
        if key not in self._names.constants:
            name = self._names.fresh("constant")
            self._names.constants[key] = name
            self._names.initializers.append(numpy_helper.from_array(array, name))
        return self._names.constants[key]

    def integers(self, *values: int) -> Value:
        """[len(values)] int64."""
        return self.constant(values, np.int64)

    def integer(self, value: int) -> Value:
        return self.constant(value, np.int64)

    def single(self, value: float) -> Value:
        return self.constant(value, np.float32)

    def double(self, value: float) -> Value:
        return self.constant(value, np.float64)

    def op(self, operator: str, *inputs: Value, **attributes: Any) -> Value:
        return self.ops(operator, 1, *inputs, **attributes)[0]

    def ops(self, operator: str, outputs: int, *inputs: Value, **attributes: Any) -> list[Value]:
        """A node with several outputs."""
        names = [self._names.fresh(operator.lower()) for _ in range(outputs)]
        self._nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def add(self, a: Value, b: Value) -> Value:
        return self.op("Add", a, b)

    def subtract(self, a: Value, b: Value) -> Value:
        return self.op("Sub", a, b)

    def multiply(self, a: Value, b: Value) -> Value:
        return self.op("Mul", a, b)

    def matmul(self, a: Value, b: Value) -> Value:
        return self.op("MatMul", a, b)

    def transpose(self, value: Value, *order: int) -> Value:
        return self.op("Transpose", value, perm=list(order or (1, 0)))

    def concat(self, *values: Value, axis: int) -> Value:
        return values[0] if len(values) == 1 else self.op("Concat", *values, axis=axis)

    def size(self, value: Value, axis: int) -> Value:
        """[1] int64."""
        return self.op("Shape", value, start=axis, end=axis + 1)

    def shape(self, *parts: Value | int) -> Value:
        """[len(parts)] int64 from sizes ([1] values) and fixed integers."""
        known = [part for part in parts if isinstance(part, int)]
        if len(known) == len(parts):
            return self.integers(*known)
        return self.concat(*(self.integers(part) if isinstance(part, int) else part for part in parts), axis=0)

    def reshape(self, value: Value, *parts: Value | int) -> Value:
        return self.op("Reshape", value, self.shape(*parts))

    def expand(self, value: Value, *parts: Value | int) -> Value:
        return self.op("Expand", value, self.shape(*parts))

    def slice(self, value: Value, start: Value | int, end: Value | int, axis: int) -> Value:
        bounds = (self.integers(each) if isinstance(each, int) else each for each in (start, end))
        return self.op("Slice", value, *bounds, self.integers(axis))

    def unsqueeze(self, value: Value, *axes: int) -> Value:
        return self.op("Unsqueeze", value, self.integers(*axes))

    def squeeze(self, value: Value, *axes: int) -> Value:
        return self.op("Squeeze", value, self.integers(*axes))

    def shift(self, value: Value, steps: int, fill: Value) -> Value:
        """Move rows along axis 0 of [rows, columns] by ``steps``, ``fill`` where none comes in."""
        return self.op("Pad", value, self.integers(steps, 0, -steps, 0), fill)

    def cast(self, value: Value, kind: int) -> Value:
        return self.op("Cast", value, to=kind)

    def sum(self, value: Value, *axes: int, keep: bool = False) -> Value:
        return self.op("ReduceSum", value, self.integers(*axes), keepdims=int(keep))

    def scan(
        self, states: Sequence[Value], sequences: Sequence[Value], body: Body, kind: int = FLOAT, reverse: bool = False
    ) -> list[Value]:
        """A loop over axis 0 of ``sequences``. body(inner builder, states, one element of each sequence) -> (next
        states, outputs of this step). reverse: from the last element to the first; outputs stand at the element they
        were made from. Returns final states, then stacked outputs."""
        inner = GraphBuilder(self._architecture, self._matrices, self._weights, _names=self._names)
        state_names = [self._names.fresh("state") for _ in states]
        element_names = [self._names.fresh("element") for _ in sequences]
        following, results = body(inner, state_names, element_names)
        # Every output of a body must be made by one of its own nodes, under a name of its own.
        made = {name for node in inner._nodes for name in node.output}
        produced: list[Value] = []
        for value in [*following, *results]:
            produced.append(value if value in made and value not in produced else inner.op("Identity", value))
        graph = helper.make_graph(
            inner._nodes,
            self._names.fresh("body"),
            [helper.make_tensor_value_info(name, kind, None) for name in [*state_names, *element_names]],
            [helper.make_tensor_value_info(name, kind, None) for name in produced],
        )
        given: dict[str, Any] = {"body": graph, "num_scan_inputs": len(sequences)}
        if reverse:
            given["scan_input_directions"] = [1] * len(sequences)
            given |= {"scan_output_directions": [1] * len(results)} if results else {}
        return self.ops("Scan", len(produced), *states, *sequences, **given)

    def finish(
        self, name: str, metadata: Mapping[str, object] | None = None, opset: int = OPSET, ir_version: int = IR_VERSION
    ) -> bytes:
        """The model's bytes, without nodes and inputs that no output needs; the same calls give the same bytes.
        metadata: by default the architecture's digest. A model with its weights inside is checked."""
        nodes = live_nodes(self._nodes, (output.name for output in self._outputs))
        read = set().union(*map(_names_read, nodes))
        inputs = [each for each in self._inputs if each.name in read]
        constants = [each for each in self._names.initializers if each.name in read]
        graph = helper.make_graph(nodes, name, inputs, self._outputs, constants)
        domains = sorted({node.domain for node in graph.node if node.domain})
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version, producer_name="idiolect")
        said = {ARCHITECTURE_KEY: architecture_digest(self.sizes)} if metadata is None else metadata
        helper.set_model_props(model, {key: str(value) for key, value in said.items()})
        if self._weights is not None:
            onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString(deterministic=True)


def live_nodes(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Those that the outputs need, in their order."""
    live, kept = set(outputs), list[onnx.NodeProto]()
    for node in reversed(nodes):
        if live.intersection(node.output):
            kept.append(node)
            live.update(_names_read(node))
    return kept[::-1]


def _names_read(node: onnx.NodeProto) -> set[str]:
    """Values that a node reads, also inside the bodies of its scans."""
    inner = (each for attribute in node.attribute for each in attribute.g.node)
    return set(node.input).union(*map(_names_read, inner))
