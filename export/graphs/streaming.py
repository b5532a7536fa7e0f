"""The graphs of streaming recognition, encoder chunk, prediction step and joiner, over float32 or int8 weights."""

from functools import partial

from device_sdk.bundle.architecture import Architecture, Frozen
from device_sdk.bundle.streaming import AnyArchitecture, StatelessPredictor, StreamingArchitecture
from export.graphs.builder import FLOAT, INT64, GraphBuilder, Value
from export.graphs.lstm import embedded_product, lstm_cell, product, quantized_lstm, stack, unit

TABLE_PIECES = 1_024
"""Up to this many pieces, the first layer's input products of all of them are one table. It depends on weights alone,
so the runtime computes it once, when it loads the graph."""


def stacked_frames(g: GraphBuilder, features: Value, mean: Value, scale: Value) -> Value:
    """Normalize [F, M] log-mel, stack K frames into one (left-over frames are dropped): [T, 1, K * M]."""
    factor, bins = g.architecture.subsampling_factor, g.architecture.mel_bins
    count = g.op("Div", g.size(features, 0), g.integers(factor))
    whole = g.slice(features, 0, g.multiply(count, g.integers(factor)), 0)
    return g.reshape(g.multiply(g.subtract(whole, mean), scale), count, 1, factor * bins)


def encoder(architecture: Architecture, *, int8: bool = False) -> bytes:
    """features [1, F, M], h [L, 1, H], c [L, 1, H] -> encoded [1, T, J], h_next, c_next. int8: of the layers; the
    projection for the joiner stays float32: it is 3 % of the time and a quarter of the error."""
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.encoder_layers, architecture.encoder_size, architecture.joiner_size
    features = g.input("features", [1, "F", architecture.mel_bins])
    h, c = (g.input(name, [layers, 1, size]) for name in "hc")
    x = stacked_frames(g, g.squeeze(features, 0), g.weight("features.mean"), g.weight("features.scale"))
    x, h_next, c_next = stack(g, x, "encoder", layers, size, h, c, int8=int8)
    weight, bias = g.weight("joiner.encoder.weight"), g.weight("joiner.encoder.bias")
    g.output("encoded", g.unsqueeze(g.op("Gemm", g.squeeze(x, 1), weight, bias, transB=1), 0), [1, "T", joint])
    g.output("h_next", h_next, [layers, 1, size])
    g.output("c_next", c_next, [layers, 1, size])
    return g.finish("encoder.int8" if int8 else "encoder")


def predictor(architecture: AnyArchitecture, *, int8: bool = False) -> bytes:
    """tokens [B] int64, h [L, B, P], c [L, B, P] -> predicted [B, J], h_next, c_next; a stateless one takes contexts
    [B, context] int64, -1 where nothing came before, and gives predicted alone."""
    g = GraphBuilder(architecture)
    if isinstance(architecture, StreamingArchitecture) and isinstance(architecture.predictor, StatelessPredictor):
        predicted = _stateless(
            g, architecture.predictor, g.input("contexts", ["B", architecture.predictor.context], INT64)
        )
        g.output("predicted", predicted, ["B", architecture.joiner_size])
        return g.finish("predictor")
    layers, size, joint = architecture.predictor_layers, architecture.predictor_size, architecture.joiner_size
    tokens = g.input("tokens", ["B"], INT64)
    h, c = (g.input(name, [layers, "B", size]) for name in "hc")
    hidden, cells = list[Value](), list[Value]()
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
        gates = _product(g, h_before, f"{name}.R", "" if int8 else inputs, int8)
        gates = g.add(gates, inputs) if int8 else gates
        h_next, c_next = lstm_cell(g, gates, size, c_before)
        hidden.append(h_next)
        cells.append(c_next)
    g.output("predicted", _product(g, hidden[-1], "joiner.predictor.weight", "", int8), ["B", joint])
    for name, states in (("h_next", hidden), ("c_next", cells)):
        g.output(name, g.concat(*(g.unsqueeze(state, 0) for state in states), axis=0), [layers, "B", size])
    return g.finish("predictor.int8" if int8 else "predictor")


def joiner(architecture: AnyArchitecture, *, int8: bool = False) -> bytes:
    """encoded and predicted, [B, K, J] with 1 where they are to be repeated -> log_probs [B * K, V] (nats)."""
    g = GraphBuilder(architecture)
    encoded = g.input("encoded", ["E", "F", architecture.joiner_size])
    predicted = g.input("predicted", ["P", "Q", architecture.joiner_size])
    mixed = g.reshape(g.add(encoded, predicted), -1, architecture.joiner_size)
    hidden = g.op(architecture.activation.capitalize(), mixed)
    logits = _product(g, hidden, "joiner.output.weight", g.weight("joiner.output.bias"), int8)
    g.output("log_probs", g.op("LogSoftmax", logits, axis=-1), ["R", architecture.pieces])
    return g.finish("joiner.int8" if int8 else "joiner")


def _stateless(g: GraphBuilder, sizes: StatelessPredictor, contexts: Value) -> Value:
    """[B, context] to the joiner's term [B, J]."""
    known = g.op("Max", contexts, g.integer(0))
    embedded = g.op("Gather", g.weight("predictor.embedding"), known, axis=0)
    spoken = g.cast(g.op("GreaterOrEqual", contexts, g.integer(0)), FLOAT)
    embedded = g.multiply(embedded, g.unsqueeze(spoken, 2))
    if sizes.context > 1:
        groups, weight = sizes.size // sizes.group, g.weight("predictor.convolution")
        embedded = g.op("Conv", g.transpose(embedded, 0, 2, 1), weight, group=groups)
        said = g.squeeze(embedded, 2)
    else:
        said = g.squeeze(embedded, 1)
    return g.op("Gemm", g.op("Relu", said), g.weight("joiner.predictor.weight"), transB=1)


def _product(g: GraphBuilder, x: Value, name: str, add: Value, int8: bool) -> Value:
    """[B, K], for int8 in [-1, 1], times a matrix [N, K], plus what there is to add: [N], for float32 also [B, N]."""
    if not int8:
        return g.op("Gemm", x, g.weight(name), *([add] if add else []), transB=1)
    return product(g, unit(g, x), name, add)


def frozen_layers(architecture: Architecture, frozen: Frozen) -> bytes:
    """F: frames; M: mel bins; T: stacked frames; N: hypotheses; U: longest hypothesis.

    Inputs: features [F, M] float32 raw log-mel, F >= K; tokens [N, U] int64, padded with 0, where the predictor is
    frozen; biases and constants by their names, float32. The matrices are in an int8 buffer of their own
    (``device_sdk.bundle.quantized``, the names of :meth:`Frozen.parameters`). Outputs, float32: ``encoder_hidden`` [T,
    1, H], the last frozen encoder layer's; ``predictor_hidden`` [U + 1, N, P], the predictor's."""
    g = GraphBuilder(architecture, frozen.parameters(architecture))
    for name, shape in (architecture.parameter_shapes() | architecture.constant_shapes()).items():
        if len(shape) == 1:
            g.input(name, shape)
    if frozen.encoder_layers:
        features = g.input("features", ["F", architecture.mel_bins])
        x = stacked_frames(g, features, "features.mean", "features.scale")
        for layer in range(frozen.encoder_layers):
            x, _, _ = quantized_lstm(g, x, f"encoder.{layer}", f"encoder.{layer}.B", architecture.encoder_size)
        g.output("encoder_hidden", x, ["T", 1, architecture.encoder_size])
    if frozen.predictor:
        hidden = _predict(g, g.input("tokens", ["N", "U"], INT64))
        g.output("predictor_hidden", hidden, ["S", "N", architecture.predictor_size])
    return g.finish("frozen.int8")


def previous_tokens(g: GraphBuilder, tokens: Value) -> Value:
    """What the prediction network reads: tokens [N, U] -> [U + 1, N], blank before the first."""
    return g.concat(g.expand(g.integer(0), 1, g.size(tokens, 0)), g.transpose(tokens), axis=0)


def _predict(g: GraphBuilder, tokens: Value) -> Value:
    """On the fixed grid of the streaming predictor: what one hypothesis gives does not depend on the others."""
    architecture, read = g.architecture, previous_tokens(g, tokens)
    size, count = architecture.predictor_size, g.size(tokens, 0)
    rows = embedded_product(g, g.reshape(read, -1), "predictor.0.W", "predictor.0.B")
    for layer in range(architecture.predictor_layers):
        zero = g.expand(g.single(0.0), count, size)
        y = g.scan([zero, zero], [g.reshape(rows, -1, count, 4 * size)], partial(_advance, layer))[2]
        if layer + 1 < architecture.predictor_layers:
            above = f"predictor.{layer + 1}"
            rows = product(g, unit(g, g.reshape(y, -1, size)), f"{above}.W", f"{above}.B")
    return y


def _advance(layer: int, q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
    """One step of a predictor layer. states: h, c, each [N, P]; now: W x + b [N, 4P]."""
    gates = q.add(product(q, unit(q, states[0]), f"predictor.{layer}.R"), now[0])
    h, c = lstm_cell(q, gates, q.architecture.predictor_size, states[1])
    return [h, c], [h]
