"""The prediction network and the joiner of an imported transducer as weights of known networks, which gradients exist
for; what they compute is compared with the graphs they were read from.

B: rows; V: pieces; J: joiner size; E: embedding; P: size of an LSTM."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from device_sdk.bundle.streaming import Activation, LstmPredictor, StatelessPredictor
from export.imports.folder import Graph
from export.imports.linear import Linear, ancestors, attribute, linear_layers

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Joiner:
    """W f(E e + P d) + b, where the sides have projections of their own, else W f(e + d) + b. weight: [V, J]."""

    weight: Float
    bias: Float
    activation: Activation
    encoder: Linear | None
    predictor: Linear | None


@dataclass(frozen=True, slots=True)
class Predictor:
    """weights: by the names that bundles give them, with blank where the graph has it. bias: of the projection, [J]."""

    shape: StatelessPredictor | LstmPredictor
    weights: Mapping[str, Float]
    bias: Float


def read_joiner(graph: Graph, pieces: int) -> Joiner:
    """Raises BundleError for any other form."""
    layers = linear_layers(graph)
    operators = {node.op_type for node in graph.model.graph.node}
    activations: list[Activation] = [name for name in ("tanh", "relu") if name.capitalize() in operators]
    if len(activations) != 1 or len(layers) not in (1, 3) or layers[-1].weight.shape[0] != pieces:
        shapes = [layer.weight.shape for layer in layers]
        raise graph.fail(
            f"the joiner has activations {activations} and matrices {shapes}; expected W f(e + d) + b for {pieces} "
            "pieces, f a tanh or a rectifier, or that with a projection of each side"
        )
    sides: dict[str, Linear] = {}
    given = [each.name for each in graph.model.graph.input]
    for layer in layers[:-1]:
        above = {name for node in ancestors(graph, layer.y) for name in node.input}
        sides |= {name: layer for name in given if name in above}
    if layers[:-1] and len(sides) != 2:
        raise graph.fail(f"the joiner projects {sorted(sides)}; expected both of {given}, each by a matrix of its own")
    encoder, predictor = (sides.get(name) for name in given[:2])
    return Joiner(layers[-1].weight, layers[-1].bias, activations[0], encoder, predictor)


def join(joiner: Joiner, encoded: Float, predicted: Float) -> Float:
    """Log-probabilities [B, V] of projected sides [B, J]."""
    mixed = encoded + predicted
    mixed = np.tanh(mixed) if joiner.activation == "tanh" else np.maximum(mixed, 0.0)
    scores = mixed @ joiner.weight.T + joiner.bias
    scores -= scores.max(axis=1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)), np.float32)


def read_predictor(graph: Graph, pieces: int, projection: Linear | None, context: int) -> Predictor:
    """The stateless network of ``context`` tokens, or LSTM layers. projection: the joiner's, where that has one."""
    embedding = _embedding(graph, pieces)
    recurrent = [node for node in graph.model.graph.node if node.op_type == "LSTM"]
    layers = linear_layers(graph)
    if projection is not None:
        layers = [*layers, projection]
    if len(layers) != 1:
        shapes = [layer.weight.shape for layer in layers]
        raise graph.fail(f"the prediction network ends in matrices {shapes}; expected one projection for the joiner")
    weights = {"predictor.embedding": embedding}
    if recurrent:
        shape: StatelessPredictor | LstmPredictor = _lstm(graph, recurrent, weights)
        width = shape.size
    else:
        shape = _stateless(graph, context, embedding.shape[1], weights)
        width = embedding.shape[1]
    if layers[0].weight.shape[1] != width:
        raise graph.fail(f"the projection is {layers[0].weight.shape}; expected {width} inputs")
    weights["joiner.predictor.weight"] = layers[0].weight
    return Predictor(shape, weights, layers[0].bias)


def _embedding(graph: Graph, pieces: int) -> Float:
    tables = [graph.constants.get(node.input[0]) for node in graph.model.graph.node if node.op_type == "Gather"]
    found = [
        table for table in tables if table is not None and table.dtype == np.float32 and table.ndim == 2 and table.size
    ]
    if len(found) != 1 or found[0].shape[0] not in (pieces, pieces - 1):
        shapes = [table.shape for table in found]
        raise graph.fail(f"embeddings are {shapes}; expected one float32 table with a row for each of {pieces} tokens")
    table = found[0].astype(np.float32)
    if len(table) < pieces:  # blank, the last token, has none
        table = np.concatenate([table, np.zeros((1, table.shape[1]), np.float32)])
    return table


def _stateless(graph: Graph, context: int, size: int, weights: dict[str, Float]) -> StatelessPredictor:
    convolutions = [node for node in graph.model.graph.node if node.op_type == "Conv"]
    if context == 1 and not convolutions:
        return StatelessPredictor(1, size, 1)
    kernel = graph.constants.get(convolutions[0].input[1]) if len(convolutions) == 1 else None
    if kernel is None or kernel.ndim != 3 or kernel.shape[0] != size or kernel.shape[2] != context:
        shape = None if kernel is None else kernel.shape
        raise graph.fail(
            f"holds {len(convolutions)} convolutions, of shape {shape}; expected one of {size} channels over the last "
            f"{context} tokens, or LSTM layers"
        )
    if len(convolutions[0].input) > 2 and np.any(graph.constants.get(convolutions[0].input[2], np.ones(1))):
        raise graph.fail("the convolution of the prediction network has a bias; expected none")
    weights["predictor.convolution"] = kernel.astype(np.float32)
    return StatelessPredictor(context, size, kernel.shape[1])


def _lstm(graph: Graph, nodes: list[onnx.NodeProto], weights: dict[str, Float]) -> LstmPredictor:
    size = 0
    for layer, node in enumerate(nodes):
        w, r, b = (graph.constants.get(name) for name in (*node.input[1:4], "", "", "")[:3])
        size = attribute(node, "hidden_size", 0)
        width = 0 if w is None else w.shape[-1]
        shapes = [None if each is None else each.shape for each in (w, r, b)]
        if w is None or r is None or b is None or shapes != [(1, 4 * size, width), (1, 4 * size, size), (1, 8 * size)]:
            raise graph.fail(f"LSTM layer {layer} has weights {shapes}; expected one direction, with biases")
        merged = np.asarray(b[0], np.float32).reshape(2, -1).sum(axis=0)
        for part, value in (("W", w[0]), ("R", r[0]), ("B", merged)):
            weights[f"predictor.{layer}.{part}"] = np.ascontiguousarray(value, np.float32)
    return LstmPredictor(len(nodes), size, weights["predictor.embedding"].shape[1])
