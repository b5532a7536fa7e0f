"""Products with int8 weights, which the device makes from its float32 ones (device_sdk.bundle.quantized).

The encoder's inputs are quantized as they come, a layer's for a block and its state for a frame. States and the joint
are outputs of tanh: for prediction and joiner they are quantized on the fixed grid of [-1, 1], so that what one
hypothesis scores does not depend on the others of its batch.
"""

from __future__ import annotations

from device_sdk.bundle.quantized import EMBEDDING_ZERO
from export.graphs.builder import MICROSOFT, GraphBuilder, Value


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
