"""LSTM layers in graphs: the runtime's fused operator forwards, gradients by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from export.graphs.builder import GraphBuilder, Value

__all__ = ["LayerGradient", "lstm", "lstm_cell", "lstm_gradients", "lstm_step", "stack"]


def lstm(
    g: GraphBuilder, x: Value, weights: Sequence[Value], size: int, state: tuple[Value, Value] | None = None
) -> tuple[Value, Value, Value]:
    """One layer. T: steps; B: batch; D: input; H: size.

    x: [T, B, D]; weights: W [4H, D], R [4H, H], B [4H] in gate order i, o, f, c; state: h, c, each [1, B, H].
    Returns outputs [T, B, H], final h and c, each [1, B, H].
    """
    w, r, b = weights
    # ONNX keeps input and recurrent biases apart; one merged bias and zeros are the same.
    bias = g.concat(g.unsqueeze(b, 0), g.constant([[0.0] * (4 * size)], "float32"), axis=1)
    initial = ("", *state) if state else ()
    y, h, c = g.ops("LSTM", 3, x, g.unsqueeze(w, 0), g.unsqueeze(r, 0), bias, *initial, hidden_size=size)
    return g.squeeze(y, 1), h, c


def lstm_step(g: GraphBuilder, inputs: Value, r: Value, size: int, h: Value, c: Value) -> tuple[Value, Value]:
    """One step of one layer, of plain operators: for a single step they take two thirds of the fused operator's time.

    inputs: [B, 4H], W x + b in gate order i, o, f, c; r: [4H, H]; h, c: [B, H]. Returns the next h and c.
    """
    return lstm_cell(g, g.op("Gemm", h, r, inputs, transB=1), size, c)


def lstm_cell(g: GraphBuilder, gates: Value, size: int, c: Value) -> tuple[Value, Value]:
    """What is left of a step once its gates are known. gates: [B, 4H], c: [B, H]. Returns the next h and c."""
    opening, candidate = g.ops("Split", 2, gates, g.integers(3 * size, size), axis=1)
    i, o, f = g.ops("Split", 3, g.op("Sigmoid", opening), axis=1, num_outputs=3)
    cell = g.add(g.multiply(f, c), g.multiply(i, g.op("Tanh", candidate)))
    return g.multiply(o, g.op("Tanh", cell)), cell


def stack(
    g: GraphBuilder, x: Value, name: str, layers: int, size: int, h: Value, c: Value
) -> tuple[Value, Value, Value]:
    """Layers ``name.0`` .. with streaming states h, c: [layers, B, H]. Returns outputs, next h, next c."""
    hidden, cells = [], []
    for layer in range(layers):
        weights = [g.weight(f"{name}.{layer}.{part}") for part in "WRB"]
        state = g.slice(h, layer, layer + 1, 0), g.slice(c, layer, layer + 1, 0)
        x, h_next, c_next = lstm(g, x, weights, size, state)
        hidden.append(h_next)
        cells.append(c_next)
    return x, g.concat(*hidden, axis=0), g.concat(*cells, axis=0)


@dataclass(frozen=True)
class LayerGradient:
    """What every gradient of a layer is a product of. R: T * B rows, step by step; H: size; D: input.

    gates: [R, 4H], d(loss) by the gates before their nonlinearity; inputs: [R, D]; before: [R, H], outputs of the step
    before; x: [T, B, D], d(loss) by the layer's input.
    """

    gates: Value
    inputs: Value
    before: Value
    x: Value


def lstm_gradients(
    g: GraphBuilder, x: Value, y: Value, dy: Value, weights: Sequence[Value], size: int
) -> LayerGradient:
    """Backpropagation through time of one layer that started from a zero state.

    T: steps; B: batch; D: input; H: size.
    x: [T, B, D] the layer's input; y: [T, B, H] its output; dy: [T, B, H] the loss' gradient by it;
    weights: as in :func:`lstm`.

    The fused operator keeps neither gates nor cells. Every step's gates follow from the stored outputs in two large
    products; only the cells' recurrence and the gradient's own recurrence are left to walk through time.
    """
    w, r, b = weights
    batch, width = g.size(x, 1), g.size(x, 2)
    zero = g.expand(g.single(0.0), batch, size)
    before = g.concat(g.unsqueeze(zero, 0), g.slice(y, 0, -1, 0), axis=0)
    x_rows, before_rows = g.reshape(x, -1, width), g.reshape(before, -1, size)
    recurrent = g.op("Gemm", before_rows, r, b, transB=1)
    gates = g.reshape(g.op("Gemm", x_rows, w, recurrent, transB=1), -1, batch, 4 * size)
    i, o, f, candidate = g.ops("Split", 4, gates, axis=2, num_outputs=4)
    i, o, f, candidate = g.op("Sigmoid", i), g.op("Sigmoid", o), g.op("Sigmoid", f), g.op("Tanh", candidate)

    def advance(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        cell = q.add(q.multiply(states[0], now[0]), now[1])
        return [cell], [cell]

    _, cells = g.scan([zero], [f, g.multiply(i, candidate)], advance)
    cells_before = g.concat(g.unsqueeze(zero, 0), g.slice(cells, 0, -1, 0), axis=0)
    squashed = g.op("Tanh", cells)
    # d(loss)/d(gate before its nonlinearity) = (dc, dh, dc, dc) * slopes, in gate order i, o, f, c.
    slopes = g.concat(
        g.multiply(candidate, _sigmoid_slope(g, i)),
        g.multiply(squashed, _sigmoid_slope(g, o)),
        g.multiply(cells_before, _sigmoid_slope(g, f)),
        g.multiply(i, _tanh_slope(g, candidate)),
        axis=2,
    )
    through_output = g.multiply(o, _tanh_slope(g, squashed))

    def retreat(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        d_gates, d_cell = states
        d_output, to_cell, slope, forget = now
        d_hidden = q.op("Gemm", d_gates, r, d_output)
        d_cell = q.add(q.multiply(d_hidden, to_cell), d_cell)
        d_gates = q.multiply(q.concat(d_cell, d_hidden, d_cell, d_cell, axis=1), slope)
        return [d_gates, q.multiply(d_cell, forget)], [d_gates]

    start = g.expand(g.single(0.0), batch, 4 * size)
    d_gates = g.scan([start, zero], [dy, through_output, slopes, f], retreat, reverse=True)[2]
    return LayerGradient(g.reshape(d_gates, -1, 4 * size), x_rows, before_rows, g.matmul(d_gates, w))


def _sigmoid_slope(g: GraphBuilder, y: Value) -> Value:
    return g.multiply(y, g.subtract(g.single(1.0), y))


def _tanh_slope(g: GraphBuilder, y: Value) -> Value:
    return g.subtract(g.single(1.0), g.multiply(y, y))
