"""A streaming encoder as bundles hold it: one utterance, features in, the joiner's term out, states by name, weights in
the packed buffer.

T: feature frames of a window; M: mel bins; S: encoder frames of a window; J: joiner size."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from device_sdk.bundle import quantized
from device_sdk.bundle.quantized import QUANTIZED_FILE
from device_sdk.bundle.streaming import EncoderState, StreamingArchitecture
from device_sdk.bundle.weights import PACKED_FILE, architecture_digest, layout
from device_sdk.errors import BundleError
from device_sdk.features.logmel import KALDI, FeatureSettings
from device_sdk.runtimes.onnxruntime import ARCHITECTURE_KEY, open_session, run
from export.graphs.builder import MICROSOFT, external
from export.imports.dequantized import dequantized
from export.imports.folder import Graph
from export.imports.linear import Linear

BIAS = "idiolect.bias"  # of the joiner, in the graph
_NEMO = "EncDec"  # how its model types begin
_NORMALIZED = {"": False, "NA": False, "per_feature": True}

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Encoder:
    """graph: features [1, T, M] and states to ``encoded`` [1, S, J] and ``next.NAME``, with its weights inside.
    weights: by their names in the graph, in the order in which it uses them. subsampling, joiner_size: as a trial run
    gave them."""

    graph: onnx.ModelProto
    weights: Mapping[str, Float]
    features: FeatureSettings
    window: int
    shift: int
    subsampling: int
    joiner_size: int
    states: tuple[EncoderState, ...]

    def names(self) -> dict[str, str]:
        """Of the weights, in the graph -> in the bundle."""
        own = {name: name if name.startswith("encoder.") else f"encoder.{name}" for name in self.weights}
        return own | {BIAS: "joiner.encoder.bias"}


def family_of(graph: Graph) -> str:
    """``zipformer2`` or ``nemo``. Raises :class:`BundleError` that names any other."""
    kind = graph.metadata.get("model_type", "")
    if kind == "zipformer2":
        if graph.metadata.get("feature", "") == "whisper":
            raise graph.fail("hears features of Whisper; expected log-mel as of Kaldi")
        return "zipformer2"
    if kind.startswith(_NEMO) and "window_size" in graph.metadata:
        return "nemo"
    raise graph.fail(f"is of model type {kind!r}; expected a streaming zipformer2, or a cache-aware transducer of NeMo")


def adapt(graph: Graph, projection: Linear | None, bias: Float) -> Encoder:
    """projection: the joiner's of the encoder's output, where it has one; it becomes part of the encoder. bias: [J] of
    the prediction network's projection, which the encoder's takes over. Raises :class:`BundleError` for another layout
    than the family's, and for what does not run."""
    family = family_of(graph)
    made = dequantized(graph)
    _clear_names(made.graph)
    graph = replace(graph, model=made)
    editor = _Editor(made)
    if family == "zipformer2":
        window, shift = graph.number("T"), graph.number("decode_chunk_len")
        states = _zipformer_states(graph)
        x, encoded = graph.model.graph.input[0].name, graph.model.graph.output[0].name
        _, fixed, bins = (*_dimensions(graph.model.graph.input[0]), 0, 0, 0)[:3]
        if fixed not in (0, window):
            raise graph.fail(f"takes {fixed} frames, metadata 'T' says {window}; expected the same")
        editor.node("Identity", ["features"], [x])
        following = [each.name for each in graph.model.graph.output[1:]]
        features = KALDI if bins == KALDI.mel_bins else None
    else:
        window, shift = graph.number("window_size"), graph.number("chunk_shift")
        x, length = (each.name for each in graph.model.graph.input[:2])
        states = _nemo_states(graph)
        bins = _dimensions(graph.model.graph.input[0])[1]
        normalization = graph.metadata.get("normalize_type", "")
        if normalization not in _NORMALIZED:
            raise graph.fail(
                f"metadata normalize_type is {normalization!r}; expected {', '.join(map(repr, _NORMALIZED))}"
            )
        editor.constant(length, np.array([window], np.int64))
        heard = editor.per_feature("features") if _NORMALIZED[normalization] else "features"
        editor.node("Transpose", [heard], [x], perm=[0, 2, 1])
        editor.node("Transpose", [graph.model.graph.output[0].name], ["idiolect.rows"], perm=[0, 2, 1], last=True)
        encoded = "idiolect.rows"
        following = [each.name for each in graph.model.graph.output[2:]]
        features = FeatureSettings(mel_bins=bins) if bins > 0 else None
    if features is None:
        raise graph.fail(f"takes {bins} mel bins; expected {KALDI.mel_bins}, or any fixed number of NeMo's")
    if not 0 < shift <= window <= 10_000:
        raise graph.fail(f"takes windows of {window} frames every {shift}; expected 0 < shift <= window <= 10000")
    if len(following) != len(states):
        raise graph.fail(f"gives {len(following)} states and takes {len(states)}; expected as many of both")
    if projection is not None:
        editor.constant("idiolect.projection", np.ascontiguousarray(projection.weight.T))
        editor.node("MatMul", [encoded, "idiolect.projection"], ["idiolect.projected"], last=True)
        encoded, bias = "idiolect.projected", bias + projection.bias
    editor.constant(BIAS, bias)
    editor.node("Add", [encoded, BIAS], ["encoded"], last=True)
    for state, name in zip(states, following, strict=True):
        editor.node("Identity", [name], [f"next.{state.name}"], last=True)
    editor.edges(window, bins, states)
    held = {tensor.name: tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    used = dict.fromkeys(name for node in made.graph.node for name in node.input if name in held)  # as they come
    weights = {
        name: np.asarray(numpy_helper.to_array(held[name]), np.float32) for name in used if np.prod(held[name].dims) > 1
    }
    frames, joiner_size = encode_once(made, graph, states, window, bins)
    if shift % frames:
        raise graph.fail(f"gives {frames} frames of {shift} feature frames; expected a divisor")
    return Encoder(made, weights, features, window, shift, shift // frames, joiner_size, states)


def _zipformer_states(graph: Graph) -> tuple[EncoderState, ...]:
    """Their shapes as the graph has them, for a batch of one."""
    layers = sum(graph.numbers("num_encoder_layers"))
    inputs = graph.model.graph.input[1:]
    if len(inputs) != 6 * layers + 2:
        raise graph.fail(f"takes {len(inputs)} states; expected six of each of {layers} layers, and two")
    return tuple(_state(graph, each, [size or 1 for size in _dimensions(each)]) for each in inputs)


def _nemo_states(graph: Graph) -> tuple[EncoderState, ...]:
    if len(graph.model.graph.input) != 5:
        raise graph.fail(f"takes {len(graph.model.graph.input)} inputs; expected features, a length and three caches")
    shapes = [
        [1, *(graph.number(f"cache_last_{cache}_dim{axis}") for axis in (1, 2, 3))] for cache in ("channel", "time")
    ]
    inputs = graph.model.graph.input[2:]
    return tuple(_state(graph, each, shape) for each, shape in zip(inputs, [*shapes, [1]], strict=True))


def _state(graph: Graph, given: onnx.ValueInfoProto, shape: list[int]) -> EncoderState:
    kinds: dict[int, Any] = {TensorProto.FLOAT: "float32", TensorProto.INT64: "int64"}
    kind = given.type.tensor_type.elem_type
    if kind not in kinds or min(shape, default=1) < 1:
        raise graph.fail(
            f"state {given.name!r} is of type {kind}, shape {shape}; expected float32 or int64, no empty axis"
        )
    return EncoderState(given.name, tuple(shape), kinds[kind])


def _dimensions(given: onnx.ValueInfoProto) -> list[int]:
    """Fixed sizes; 0 for free ones."""
    return [max(0, each.dim_value) for each in given.type.tensor_type.shape.dim]


def _clear_names(graph: onnx.GraphProto) -> None:
    """Values that have names of ours get others."""

    def clear(name: str) -> str:
        ours = name in ("features", "encoded") or name.startswith(("next.", "idiolect."))
        return f"given.{name}" if ours else name

    for node in graph.node:
        node.input[:], node.output[:] = map(clear, node.input), map(clear, node.output)
        for attribute in node.attribute:
            for branch in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                _clear_names(branch)
    for each in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        each.name = clear(each.name)


class _Editor:
    """Adds nodes at both ends of a graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.graph = model.graph
        self._first: list[onnx.NodeProto] = []

    def node(self, kind: str, inputs: list[str], outputs: list[str], *, last: bool = False, **attributes: Any) -> None:
        made = helper.make_node(kind, inputs, outputs, **attributes)
        if last:
            self.graph.node.append(made)
        else:
            self._first.append(made)

    def constant(self, name: str, value: NDArray[np.generic]) -> None:
        self.graph.initializer.append(numpy_helper.from_array(value, name))

    def per_feature(self, x: str) -> str:
        """(x - mean) / (deviation + 1e-5) of each bin over the window, [1, T, M]: NeMo's normalization."""
        self.constant("idiolect.least", np.array(1e-5, np.float32))
        for kind, inputs, output in (
            ("ReduceMean", [x], "mean"),
            ("Sub", [x, "idiolect.mean"], "centred"),
            ("Mul", ["idiolect.centred"] * 2, "squares"),
            ("ReduceMean", ["idiolect.squares"], "variance"),
            ("Sqrt", ["idiolect.variance"], "deviation"),
            ("Add", ["idiolect.deviation", "idiolect.least"], "divisor"),
            ("Div", ["idiolect.centred", "idiolect.divisor"], "normalized"),
        ):
            attributes: dict[str, Any] = {"axes": [1], "keepdims": 1} if kind == "ReduceMean" else {}
            self.node(kind, inputs, [f"idiolect.{output}"], **attributes)
        return "idiolect.normalized"

    def edges(self, window: int, bins: int, states: tuple[EncoderState, ...]) -> None:
        """Inputs and outputs as bundles name them."""
        nodes = [*self._first, *self.graph.node]
        del self.graph.node[:], self.graph.input[:], self.graph.output[:], self.graph.value_info[:]
        self.graph.node.extend(nodes)
        kinds = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
        self.graph.input.append(helper.make_tensor_value_info("features", TensorProto.FLOAT, [1, window, bins]))
        self.graph.output.append(helper.make_tensor_value_info("encoded", TensorProto.FLOAT, None))
        for state in states:
            kind = kinds[state.kind]
            self.graph.input.append(helper.make_tensor_value_info(state.name, kind, state.shape))
            self.graph.output.append(helper.make_tensor_value_info(f"next.{state.name}", kind, None))


def encode_once(
    model: onnx.ModelProto, graph: Graph, states: tuple[EncoderState, ...], window: int, bins: int
) -> tuple[int, int]:
    """Two windows of near silence. Returns (encoder frames of a window, joiner size). Raises :class:`BundleError` where
    the graph fails, gives other shapes or states, or values that are no numbers."""
    session = open_session(model.SerializeToString(), str(graph.path))
    feeds: dict[str, NDArray[np.generic]] = {state.name: np.zeros(state.shape, state.kind) for state in states}
    for level in (-10.0, -8.0):
        feeds["features"] = np.full((1, window, bins), level, np.float32)
        try:
            encoded, *following = run(session, feeds, str(graph.path))
        except BundleError as error:
            raise graph.fail(f"does not run on a window of {window} frames ({str(error)[-300:]})") from error
        if encoded.ndim != 3 or len(encoded) != 1 or 0 in encoded.shape or not np.isfinite(encoded).all():
            raise graph.fail(f"gives shape {encoded.shape}, or values that are no numbers; expected [1, frames, size]")
        for state, value in zip(states, following, strict=True):
            if value.shape != state.shape or value.dtype != state.kind or not np.isfinite(value).all():
                raise graph.fail(
                    f"gives state {state.name!r} as {value.dtype} {value.shape}; expected {state.kind} {state.shape}"
                )
            feeds[state.name] = value
    return encoded.shape[1], encoded.shape[2]


def packed_graph(encoder: Encoder, architecture: StreamingArchitecture, *, int8: bool = False) -> bytes:
    """The graph with its weights in the packed buffer; the same input gives the same bytes. int8: products with
    matrices are of bytes, inputs quantized as they come, weights in the int8 buffer."""
    model, slots, names = onnx.ModelProto(), layout(architecture), encoder.names()
    model.CopyFrom(encoder.graph)
    if int8:
        _quantize(model, architecture, names)
    used = {name for node in model.graph.node for name in node.input}
    kept = [tensor for tensor in model.graph.initializer if tensor.name in used]
    del model.graph.initializer[:]
    for tensor in kept:
        if tensor.name in names and tensor.data_location != TensorProto.EXTERNAL:
            offset, shape = slots[names[tensor.name]]
            tensor = external(tensor.name, PACKED_FILE, TensorProto.FLOAT, shape, offset, 4 * prod(shape))
        model.graph.initializer.append(tensor)
    del model.metadata_props[:]
    helper.set_model_props(model, {ARCHITECTURE_KEY: architecture_digest(architecture)})
    serialized: bytes = model.SerializeToString(deterministic=True)
    return serialized


def _quantize(model: onnx.ModelProto, architecture: StreamingArchitecture, names: Mapping[str, str]) -> None:
    """Products with matrices of the bundle as products of bytes."""
    slots = quantized.layout(architecture, architecture.encoder_matrices)
    for node in model.graph.node:
        slot = slots.get(names.get(node.input[1], "")) if node.op_type == "MatMul" else None
        if slot is None:
            continue
        values, scale = f"{node.input[1]}.int8", f"{node.input[1]}.scale"
        for name, kind, shape, offset, size in (
            (values, TensorProto.INT8, slot.shape, slot.values, prod(slot.shape)),
            (scale, TensorProto.FLOAT, (slot.scales,), slot.scale, 4 * slot.scales),
        ):
            model.graph.initializer.append(external(name, QUANTIZED_FILE, kind, shape, offset, size))
        node.op_type, node.domain = "DynamicQuantizeMatMul", MICROSOFT
        node.input[:] = [node.input[0], values, scale]
    if all(each.domain != MICROSOFT for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
