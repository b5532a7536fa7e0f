"""The layers beneath a trainable subset as one int8 graph over a whole utterance: run, and never walked back."""

from __future__ import annotations

from functools import partial

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.subsets import Frozen
from export.graphs.builder import INT64, GraphBuilder, Value
from export.graphs.lstm import lstm_cell
from export.graphs.quantized import embedded_product, product, quantized_lstm, unit
from export.graphs.streaming import stacked_frames

__all__ = ["frozen_layers", "started"]


def frozen_layers(architecture: Architecture, frozen: Frozen) -> bytes:
    """F: frames; M: mel bins; T: stacked frames; N: hypotheses; U: longest hypothesis.

    Inputs: features [F, M] float32 raw log-mel, F >= K; tokens [N, U] int64, padded with 0, where the predictor is
    frozen; biases and constants by their names, float32. The matrices are in an int8 buffer of their own
    (``device_sdk.bundle.quantized``, the names of :meth:`Frozen.parameters`). Outputs, float32: ``encoder_hidden`` [T,
    1, H], the last frozen encoder layer's; ``predictor_hidden`` [U + 1, N, P], the predictor's.
    """
    names = frozen.parameters(architecture)
    g = GraphBuilder(architecture, names)
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


def started(g: GraphBuilder, tokens: Value) -> Value:
    """What the prediction network reads: tokens [N, U] -> [U + 1, N], blank before the first."""
    return g.concat(g.expand(g.integer(0), 1, g.size(tokens, 0)), g.transpose(tokens), axis=0)


def _predict(g: GraphBuilder, tokens: Value) -> Value:
    """On the fixed grid of the streaming predictor: what one hypothesis gives does not depend on the others."""
    architecture, read = g.architecture, started(g, tokens)
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
