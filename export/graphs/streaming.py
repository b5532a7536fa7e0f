"""The three graphs of streaming recognition: encoder chunk, prediction step, joiner."""

from __future__ import annotations

from device_sdk.bundle.architecture import Architecture
from export.graphs.builder import INT64, GraphBuilder, Value
from export.graphs.lstm import lstm_step, stack

__all__ = ["encoder", "joined", "joiner", "predictor", "stacked_frames", "states_of"]

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


def encoder(architecture: Architecture) -> bytes:
    """features [1, F, M], h [L, 1, H], c [L, 1, H] -> encoded [1, T, J], h_next, c_next."""
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.encoder_layers, architecture.encoder_size, architecture.joiner_size
    features = g.input("features", [1, "F", architecture.mel_bins])
    h, c = (g.input(name, [layers, 1, size]) for name in "hc")
    x = stacked_frames(g, g.squeeze(features, 0), g.weight("features.mean"), g.weight("features.scale"))
    x, h_next, c_next = stack(g, x, "encoder", layers, size, h, c)
    weight, bias = g.weight("joiner.encoder.weight"), g.weight("joiner.encoder.bias")
    encoded = g.op("Gemm", g.squeeze(x, 1), weight, bias, transB=1)
    g.output("encoded", g.unsqueeze(encoded, 0), [1, "T", joint])
    g.output("h_next", h_next, [layers, 1, size])
    g.output("c_next", c_next, [layers, 1, size])
    return g.finish("encoder")


def states_of(g: GraphBuilder, states: Value, layer: int, layers: int) -> Value:
    """[L, B, P] -> those of one layer, [B, P]."""
    return g.squeeze(states if layers == 1 else g.slice(states, layer, layer + 1, 0), 0)


def predictor(architecture: Architecture) -> bytes:
    """tokens [B] int64, h [L, B, P], c [L, B, P] -> predicted [B, J], h_next, c_next."""
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.predictor_layers, architecture.predictor_size, architecture.joiner_size
    tokens = g.input("tokens", ["B"], INT64)
    h, c = (g.input(name, [layers, "B", size]) for name in "hc")
    hidden: list[Value] = []
    cells: list[Value] = []
    for layer in range(layers):
        w, r, b = (g.weight(f"predictor.{layer}.{part}") for part in "WRB")
        embedding = g.weight("predictor.embedding")
        if layer > 0:
            inputs = g.op("Gemm", hidden[-1], w, b, transB=1)
        elif architecture.pieces <= TABLE_PIECES:
            inputs = g.op("Gather", g.op("Gemm", embedding, w, b, transB=1), tokens, axis=0)
        else:
            inputs = g.op("Gemm", g.op("Gather", embedding, tokens, axis=0), w, b, transB=1)
        before = (states_of(g, state, layer, layers) for state in (h, c))
        h_next, c_next = lstm_step(g, inputs, r, size, *before)
        hidden.append(h_next)
        cells.append(c_next)
    predicted = g.op("Gemm", hidden[-1], g.weight("joiner.predictor.weight"), transB=1)
    g.output("predicted", predicted, ["B", joint])
    for name, states in (("h_next", hidden), ("c_next", cells)):
        g.output(name, g.concat(*(g.unsqueeze(state, 0) for state in states), axis=0), [layers, "B", size])
    return g.finish("predictor")


def joined(g: GraphBuilder) -> Value:
    """encoded and predicted, [B, K, J] with 1 where they are to be repeated -> tanh of their sum, [B * K, J]."""
    size = g.architecture.joiner_size
    encoded = g.input("encoded", ["E", "F", size])
    predicted = g.input("predicted", ["P", "Q", size])
    return g.op("Tanh", g.reshape(g.add(encoded, predicted), -1, size))


def joiner(architecture: Architecture) -> bytes:
    """encoded and predicted, as of :func:`joined` -> log_probs [B * K, V] (nats)."""
    g = GraphBuilder(architecture)
    mixed = joined(g)
    logits = g.op("Gemm", mixed, g.weight("joiner.output.weight"), g.weight("joiner.output.bias"), transB=1)
    g.output("log_probs", g.op("LogSoftmax", logits, axis=-1), ["R", architecture.pieces])
    return g.finish("joiner")
