"""The graphs of streaming recognition, encoder chunk, prediction step and joiner, over float32 or int8 weights."""

from __future__ import annotations

from device_sdk.bundle.architecture import Architecture
from export.graphs.builder import INT64, GraphBuilder, Value
from export.graphs.lstm import lstm_cell, stack
from export.graphs.quantized import embedded_product, product, unit

__all__ = ["encoder", "joiner", "predictor", "stacked_frames"]

TABLE_PIECES = 1_024
"""Up to this many pieces, the first layer's input products of all of them are one table. It depends on weights alone,
so the runtime computes it once, when it loads the graph."""


def stacked_frames(g: GraphBuilder, features: Value, mean: Value, scale: Value) -> Value:
    """Normalize [F, M] log-mel, stack K frames into one (left-over frames are dropped): [T, 1, K * M]."""
    factor, bins = g.architecture.subsampling_factor, g.architecture.mel_bins
    count = g.op("Div", g.size(features, 0), g.integers(factor))
    whole = g.slice(features, 0, g.multiply(count, g.integers(factor)), 0)
    normalized = g.multiply(g.subtract(whole, mean), scale)
    return g.reshape(normalized, count, 1, factor * bins)


def encoder(architecture: Architecture, *, int8: bool = False) -> bytes:
    """features [1, F, M], h [L, 1, H], c [L, 1, H] -> encoded [1, T, J], h_next, c_next.

    int8: of the layers; the projection for the joiner stays float32: it is 3 % of the time and a quarter of the error.
    """
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.encoder_layers, architecture.encoder_size, architecture.joiner_size
    features = g.input("features", [1, "F", architecture.mel_bins])
    h, c = (g.input(name, [layers, 1, size]) for name in "hc")
    x = stacked_frames(g, g.squeeze(features, 0), g.weight("features.mean"), g.weight("features.scale"))
    x, h_next, c_next = stack(g, x, "encoder", layers, size, h, c, int8=int8)
    weight, bias = g.weight("joiner.encoder.weight"), g.weight("joiner.encoder.bias")
    encoded = g.op("Gemm", g.squeeze(x, 1), weight, bias, transB=1)
    g.output("encoded", g.unsqueeze(encoded, 0), [1, "T", joint])
    g.output("h_next", h_next, [layers, 1, size])
    g.output("c_next", c_next, [layers, 1, size])
    return g.finish("encoder.int8" if int8 else "encoder")


def predictor(architecture: Architecture, *, int8: bool = False) -> bytes:
    """tokens [B] int64, h [L, B, P], c [L, B, P] -> predicted [B, J], h_next, c_next."""
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.predictor_layers, architecture.predictor_size, architecture.joiner_size
    tokens = g.input("tokens", ["B"], INT64)
    h, c = (g.input(name, [layers, "B", size]) for name in "hc")
    hidden: list[Value] = []
    cells: list[Value] = []
    for name in (f"predictor.{layer}" for layer in range(layers)):
        if hidden:
            inputs = _product(g, hidden[-1], f"{name}.W", g.weight(f"{name}.B"), int8)
        elif architecture.pieces <= TABLE_PIECES:
            weight, bias = g.weight(f"{name}.W"), g.weight(f"{name}.B")
            table = g.op("Gemm", g.weight("predictor.embedding"), weight, bias, transB=1)
            inputs = g.op("Gather", table, tokens, axis=0)
        elif int8:
            inputs = embedded_product(g, tokens, f"{name}.W", g.weight(f"{name}.B"))
        else:
            embedded = g.op("Gather", g.weight("predictor.embedding"), tokens, axis=0)
            inputs = _product(g, embedded, f"{name}.W", g.weight(f"{name}.B"), int8)
        layer = len(hidden)
        h_before, c_before = (
            g.squeeze(states if layers == 1 else g.slice(states, layer, layer + 1, 0), 0) for states in (h, c)
        )
        if int8:
            gates = g.add(_product(g, h_before, f"{name}.R", "", int8), inputs)
        else:
            gates = _product(g, h_before, f"{name}.R", inputs, int8)
        h_next, c_next = lstm_cell(g, gates, size, c_before)
        hidden.append(h_next)
        cells.append(c_next)
    g.output("predicted", _product(g, hidden[-1], "joiner.predictor.weight", "", int8), ["B", joint])
    for name, states in (("h_next", hidden), ("c_next", cells)):
        g.output(name, g.concat(*(g.unsqueeze(state, 0) for state in states), axis=0), [layers, "B", size])
    return g.finish("predictor.int8" if int8 else "predictor")


def joiner(architecture: Architecture, *, int8: bool = False) -> bytes:
    """encoded and predicted, [B, K, J] with 1 where they are to be repeated -> log_probs [B * K, V] (nats)."""
    g = GraphBuilder(architecture)
    encoded = g.input("encoded", ["E", "F", architecture.joiner_size])
    predicted = g.input("predicted", ["P", "Q", architecture.joiner_size])
    mixed = g.op("Tanh", g.reshape(g.add(encoded, predicted), -1, architecture.joiner_size))
    logits = _product(g, mixed, "joiner.output.weight", g.weight("joiner.output.bias"), int8)
    g.output("log_probs", g.op("LogSoftmax", logits, axis=-1), ["R", architecture.pieces])
    return g.finish("joiner.int8" if int8 else "joiner")


def _product(g: GraphBuilder, x: Value, name: str, add: Value, int8: bool) -> Value:
    """[B, K], for int8 in [-1, 1], times a matrix [N, K], plus what there is to add: [N], for float32 also [B, N]."""
    if not int8:
        return g.op("Gemm", x, g.weight(name), *([add] if add else []), transB=1)
    return product(g, unit(g, x), name, add)
