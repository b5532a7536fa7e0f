"""The streaming graphs over int8 weights, which the device makes from its float32 ones (device_sdk.bundle.quantized).

The encoder's inputs are quantized as they come, a layer's for a block and its state for a frame. States and the joint
are outputs of tanh: for prediction and joiner they are quantized on the fixed grid of [-1, 1], so that what one
hypothesis scores does not depend on the others of its batch.
"""

from __future__ import annotations

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.quantized import EMBEDDING_ZERO
from export.graphs.builder import INT64, MICROSOFT, GraphBuilder, Value
from export.graphs.lstm import lstm_cell
from export.graphs.streaming import TABLE_PIECES, joined, stacked_frames, states_of

__all__ = ["embedded_product", "encoder", "joiner", "predictor", "product", "quantized_lstm", "unit"]


def encoder(architecture: Architecture) -> bytes:
    """As :func:`export.graphs.streaming.encoder`. The projection for the joiner stays float32: it is 3 % of the time
    and a quarter of the error."""
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.encoder_layers, architecture.encoder_size, architecture.joiner_size
    features = g.input("features", [1, "F", architecture.mel_bins])
    h, c = (g.input(name, [layers, 1, size]) for name in "hc")
    x = stacked_frames(g, g.squeeze(features, 0), g.weight("features.mean"), g.weight("features.scale"))
    hidden: list[Value] = []
    cells: list[Value] = []
    for layer in range(layers):
        state = (g.slice(states, layer, layer + 1, 0) for states in (h, c))
        x, h_next, c_next = quantized_lstm(g, x, f"encoder.{layer}", g.weight(f"encoder.{layer}.B"), size, *state)
        hidden.append(h_next)
        cells.append(c_next)
    encoded = g.op(
        "Gemm", g.squeeze(x, 1), g.weight("joiner.encoder.weight"), g.weight("joiner.encoder.bias"), transB=1
    )
    g.output("encoded", g.unsqueeze(encoded, 0), [1, "T", joint])
    g.output("h_next", g.concat(*hidden, axis=0), [layers, 1, size])
    g.output("c_next", g.concat(*cells, axis=0), [layers, 1, size])
    return g.finish("encoder.int8")


def predictor(architecture: Architecture) -> bytes:
    """As :func:`export.graphs.streaming.predictor`."""
    g = GraphBuilder(architecture)
    layers, size, joint = architecture.predictor_layers, architecture.predictor_size, architecture.joiner_size
    tokens = g.input("tokens", ["B"], INT64)
    h, c = (g.input(name, [layers, "B", size]) for name in "hc")
    hidden: list[Value] = []
    cells: list[Value] = []
    below = ""
    for layer in range(layers):
        name = f"predictor.{layer}"
        if layer > 0:
            inputs = product(g, below, f"{name}.W", g.weight(f"{name}.B"))
        elif architecture.pieces <= TABLE_PIECES:
            weight, bias = g.weight(f"{name}.W"), g.weight(f"{name}.B")
            table = g.op("Gemm", g.weight("predictor.embedding"), weight, bias, transB=1)
            inputs = g.op("Gather", table, tokens, axis=0)
        else:
            inputs = embedded_product(g, tokens, f"{name}.W", g.weight(f"{name}.B"))
        h_before, c_before = (states_of(g, state, layer, layers) for state in (h, c))
        gates = g.add(product(g, unit(g, h_before), f"{name}.R"), inputs)
        h_next, c_next = lstm_cell(g, gates, size, c_before)
        below = unit(g, h_next)
        hidden.append(h_next)
        cells.append(c_next)
    g.output("predicted", product(g, below, "joiner.predictor.weight"), ["B", joint])
    for name, states in (("h_next", hidden), ("c_next", cells)):
        g.output(name, g.concat(*(g.unsqueeze(state, 0) for state in states), axis=0), [layers, "B", size])
    return g.finish("predictor.int8")


def joiner(architecture: Architecture) -> bytes:
    """As :func:`export.graphs.streaming.joiner`."""
    g = GraphBuilder(architecture)
    logits = product(g, unit(g, joined(g)), "joiner.output.weight", g.weight("joiner.output.bias"))
    g.output("log_probs", g.op("LogSoftmax", logits, axis=-1), ["R", architecture.pieces])
    return g.finish("joiner.int8")


def quantized_lstm(
    g: GraphBuilder, x: Value, name: str, bias: Value, size: int, h: Value = "", c: Value = ""
) -> tuple[Value, Value, Value]:
    """As :func:`export.graphs.lstm.lstm` with the int8 weights of layer ``name``; from a zero state unless given."""
    w, w_scale = g.quantized(f"{name}.W", lead=1)
    r, r_scale = g.quantized(f"{name}.R", lead=1)
    zero = g.constant([0], "int8")
    both = g.concat(g.unsqueeze(bias, 0), g.constant([[0.0] * (4 * size)], "float32"), axis=1)
    y, h_next, c_next = g.ops(
        "DynamicQuantizeLSTM",
        3,
        *(x, w, r, both, "", h, c, "", w_scale, zero, r_scale, zero),
        hidden_size=size,
        domain=MICROSOFT,
    )
    return g.squeeze(y, 1), h_next, c_next


def embedded_product(g: GraphBuilder, tokens: Value, name: str, bias: Value) -> Value:
    """The quantized embeddings of tokens [B] times a quantized matrix [K, N], plus a bias [N]: [B, N] float32."""
    values, scale = g.quantized("predictor.embedding")
    weight, weight_scale = g.quantized(name)
    rows, zero = g.op("Gather", values, tokens, axis=0), g.constant(EMBEDDING_ZERO, "uint8")
    return g.op("MatMulIntegerToFloat", rows, weight, scale, weight_scale, zero, "", bias, domain=MICROSOFT)


def unit(g: GraphBuilder, x: Value) -> Value:
    """[B, K] float32 in [-1, 1] as uint8: -1, 0, 1 are 1, 128, 255."""
    return g.op("QuantizeLinear", x, g.single(1 / 127), g.constant(128, "uint8"))


def product(g: GraphBuilder, unit: Value, name: str, bias: Value = "") -> Value:
    """[B, K] of :func:`unit` times a quantized matrix [K, N], plus a bias [N] where given: [B, N] float32."""
    weight, scale = g.quantized(name)
    inputs = [unit, weight, g.single(1 / 127), scale, g.constant(128, "uint8")]
    return g.op("MatMulIntegerToFloat", *inputs, *(("", bias) if bias else ()), domain=MICROSOFT)
