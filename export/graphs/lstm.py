"""LSTM layers in graphs: the runtime's fused operator forwards, gradients by hand."""

from __future__ import annotations

from export.graphs.builder import GraphBuilder, Value

__all__ = ["lstm", "stack"]


def lstm(
    g: GraphBuilder, x: Value, w: Value, r: Value, b: Value, size: int, state: tuple[Value, Value] | None = None
) -> tuple[Value, Value, Value]:
    """One layer. T: steps; B: batch; D: input; H: size.

    x: [T, B, D]; w: [4H, D]; r: [4H, H]; b: [4H] in gate order i, o, f, c; state: h, c, each [1, B, H].
    Returns outputs [T, B, H], final h and c, each [1, B, H].
    """
    # ONNX keeps input and recurrent biases apart; one merged bias and zeros are the same.
    bias = g.concat(g.unsqueeze(b, 0), g.constant([[0.0] * (4 * size)], "float32"), axis=1)
    initial = ("", *state) if state else ()
    y, h, c = g.ops("LSTM", 3, x, g.unsqueeze(w, 0), g.unsqueeze(r, 0), bias, *initial, hidden_size=size)
    return g.squeeze(y, 1), h, c


def stack(
    g: GraphBuilder, x: Value, name: str, layers: int, size: int, h: Value, c: Value
) -> tuple[Value, Value, Value]:
    """Layers ``name.0`` .. with streaming states h, c: [layers, B, H]. Returns outputs, next h, next c."""
    hidden, cells = [], []
    for layer in range(layers):
        weights = [g.weight(f"{name}.{layer}.{part}") for part in "WRB"]
        state = g.slice(h, layer, layer + 1, 0), g.slice(c, layer, layer + 1, 0)
        x, h_next, c_next = lstm(g, x, *weights, size, state)
        hidden.append(h_next)
        cells.append(c_next)
    return x, g.concat(*hidden, axis=0), g.concat(*cells, axis=0)
