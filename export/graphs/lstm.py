"""LSTM layers in graphs: the runtime's fused operator forwards, gradients by hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from device_sdk.bundle.architecture import factor_names
from device_sdk.bundle.quantized import EMBEDDING_ZERO
from export.graphs.builder import MICROSOFT, GraphBuilder, Value

BLOCK = 32
"""Columns that lie together: runs of whole cache lines, and as many sums as vector registers hold."""
LARGE = 1 << 20
"""Entries from which a matrix is laid out in blocks. Smaller ones stay in a core's own cache whatever their layout."""


def lstm(
    g: GraphBuilder, x: Value, weights: Sequence[Value], size: int, state: tuple[Value, Value] | None = None
) -> tuple[Value, Value, Value]:
    """One layer. T: steps; B: batch; D: input; H: size. x: [T, B, D]; weights: W [4H, D], R [4H, H], B [4H] in gate
    order i, o, f, c; state: h, c, each [1, B, H]. Returns outputs [T, B, H], final h and c, each [1, B, H]."""
    w, r, b = weights
    # ONNX keeps input and recurrent biases apart; one merged bias and zeros are the same.
    bias = g.concat(g.unsqueeze(b, 0), g.constant([[0.0] * (4 * size)], "float32"), axis=1)
    initial = ("", *state) if state else ()
    y, h, c = g.ops("LSTM", 3, x, g.unsqueeze(w, 0), g.unsqueeze(r, 0), bias, *initial, hidden_size=size)
    return g.squeeze(y, 1), h, c


def lstm_cell(g: GraphBuilder, gates: Value, size: int, c: Value) -> tuple[Value, Value]:
    """What is left of a step once its gates are known, of plain operators: for a single step they take two thirds of
    the fused operator's time. gates: [B, 4H], in order i, o, f, c; c: [B, H]. Returns the next h and c."""
    opening, candidate = g.ops("Split", 2, gates, g.integers(3 * size, size), axis=1)
    i, o, f = g.ops("Split", 3, g.op("Sigmoid", opening), axis=1, num_outputs=3)
    cell = g.add(g.multiply(f, c), g.multiply(i, g.op("Tanh", candidate)))
    return g.multiply(o, g.op("Tanh", cell)), cell


def stack(
    g: GraphBuilder, x: Value, name: str, layers: int, size: int, h: Value, c: Value, *, int8: bool = False
) -> tuple[Value, Value, Value]:
    """Layers ``name.0`` .. with streaming states h, c: [layers, B, H]. Returns outputs, next h, next c."""
    hidden, cells = [], []
    for number in range(layers):
        layer = f"{name}.{number}"
        state = g.slice(h, number, number + 1, 0), g.slice(c, number, number + 1, 0)
        if int8:
            x, h_next, c_next = quantized_lstm(g, x, layer, g.weight(f"{layer}.B"), size, *state)
        else:
            x, h_next, c_next = lstm(g, x, [g.weight(f"{layer}.{part}") for part in "WRB"], size, state)
        hidden.append(h_next)
        cells.append(c_next)
    return x, g.concat(*hidden, axis=0), g.concat(*cells, axis=0)


State = tuple[Value, Value]
"""Output h and cell c of a layer after a step, each [B, H]."""


@dataclass(frozen=True)
class Trace:
    """A layer's forward pass with all that its backward pass needs. T: steps; B: batch; D: input; H: size. x: [T, B, D]
    its input; y: [T, B, H] its output; opening: [T, B, 3H], gates i, o, f; candidate, cells and the cells' tanh: [T, B,
    H]; state: h and c before the first step, each [B, H], None for zero."""

    x: Value
    y: Value
    opening: Value
    candidate: Value
    cells: Value
    squashed: Value
    state: State | None = None


def traced_lstm(g: GraphBuilder, x: Value, weights: Sequence[Value], size: int, state: State | None = None) -> Trace:
    """One layer of plain operators; x and weights: as in :func:`lstm`; state: as of :class:`Trace`. Where weights are
    inputs of the graph, the fused operator transposes and packs R anew for every step, and it keeps neither gates nor
    cells. Here R is laid out once."""
    w, r, b = weights
    batch, width = g.size(x, 1), g.size(x, 2)
    inputs = g.reshape(g.op("Gemm", g.reshape(x, -1, width), w, b, transB=1), -1, batch, 4 * size)
    recurrent = recurrent_product(g, r, (size, 4 * size), transposed=True)

    def advance(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        gates = recurrent(q, states[0], now[0])
        opening, candidate = q.ops("Split", 2, gates, q.integers(3 * size, size), axis=1)
        opening, candidate = q.op("Sigmoid", opening), q.op("Tanh", candidate)
        i, o, f = q.ops("Split", 3, opening, axis=1, num_outputs=3)
        cell = q.add(q.multiply(f, states[1]), q.multiply(i, candidate))
        squashed = q.op("Tanh", cell)
        h = q.multiply(o, squashed)
        return [h, cell], [h, opening, candidate, cell, squashed]

    start = state or [g.expand(g.single(0.0), batch, size)] * 2
    y, opening, candidate, cells, squashed = g.scan(start, [inputs], advance)[2:]
    return Trace(x, y, opening, candidate, cells, squashed, state)


def matrix_gradients(
    g: GraphBuilder, name: str, dy: Value, x: Value, *, factors: bool = False, before: Mapping[str, Value] | None = None
) -> dict[str, Value]:
    """d(loss) by the matrix ``name`` [out, in] of y = x name^T, under its name. R: rows; r: rank. dy: [R, out]; x: [R,
    in]. before: gradients so far, to add to. factors: by its factors, up [out, r] and down [r, in], under their names
    (Hu et al. 2021, LoRA): with up down added to the matrix, d(up) = dy^T (x down^T) and d(down) = (dy up)^T x."""

    def product(name: str, dy: Value, x: Value) -> Value:
        return g.op("Gemm", dy, x, *(() if before is None else (before[name],)), transA=1)

    if not factors:
        return {name: product(name, dy, x)}
    up, down = factor_names(name)
    return {up: product(up, dy, g.op("Gemm", x, down, transB=1)), down: product(down, g.matmul(dy, up), x)}


def lstm_gradients(
    g: GraphBuilder,
    trace: Trace,
    dy: Value,
    weights: Sequence[Value],
    size: int,
    *,
    factors: bool = False,
    d_state: State | None = None,
) -> tuple[dict[str, Value], Value, State]:
    """Backpropagation through time of one layer. T: steps; B: batch; H: size. dy: [T, B, H] the loss' gradient by the
    layer's output; weights: W, R, B by name. d_state: its gradient by h and c after the last step, where they are used
    besides. What does not depend on the step after is worked out for all steps at once; only the gradient's own
    recurrence walks through time. Returns the gradients by the weights (factors: see :func:`matrix_gradients`), by the
    input, and by the state before the first step."""
    w, r, b = weights
    batch, width = g.size(trace.x, 1), g.size(trace.x, 2)
    zero = g.expand(g.single(0.0), batch, size)
    candidate, squashed = trace.candidate, trace.squashed
    i, o, f = g.ops("Split", 3, trace.opening, axis=2, num_outputs=3)
    y_before, cells_before = (
        g.concat(g.unsqueeze(first, 0), g.slice(each, 0, -1, 0), axis=0)
        for first, each in zip(trace.state or (zero, zero), (trace.y, trace.cells), strict=True)
    )
    # d(loss)/d(gate before its nonlinearity) = (dc, dh, dc, dc) * slopes, in gate order i, o, f, c.
    slopes = g.concat(
        g.multiply(candidate, _sigmoid_slope(g, i)),
        g.multiply(squashed, _sigmoid_slope(g, o)),
        g.multiply(cells_before, _sigmoid_slope(g, f)),
        g.multiply(i, _tanh_slope(g, candidate)),
        axis=2,
    )
    through_output = g.multiply(o, _tanh_slope(g, squashed))
    recurrent = recurrent_product(g, r, (4 * size, size), transposed=False)

    def retreat(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        d_gates, d_cell = states
        d_output, to_cell, slope, forget = now
        d_hidden = recurrent(q, d_gates, d_output)
        d_cell = q.add(q.multiply(d_hidden, to_cell), d_cell)
        d_gates = q.multiply(q.concat(d_cell, d_hidden, d_cell, d_cell, axis=1), slope)
        return [d_gates, q.multiply(d_cell, forget)], [d_gates]

    start, d_cell = g.expand(g.single(0.0), batch, 4 * size), zero
    if d_state is not None:
        last = g.add(g.slice(dy, -1, 1 << 30, 0), g.unsqueeze(d_state[0], 0))
        dy, d_cell = g.concat(g.slice(dy, 0, -1, 0), last, axis=0), d_state[1]
    first, d_first_cell, d_gates = g.scan([start, d_cell], [dy, through_output, slopes, f], retreat, reverse=True)
    rows, before = g.reshape(trace.x, -1, width), g.reshape(y_before, -1, size)
    gates, dx = g.reshape(d_gates, -1, 4 * size), g.matmul(d_gates, w)
    gradients = matrix_gradients(g, w, gates, rows, factors=factors)
    gradients |= matrix_gradients(g, r, gates, before, factors=factors)
    return gradients | {b: g.sum(gates, 0)}, dx, (g.matmul(first, r), d_first_cell)


def _sigmoid_slope(g: GraphBuilder, y: Value) -> Value:
    return g.multiply(y, g.subtract(g.single(1.0), y))


def _tanh_slope(g: GraphBuilder, y: Value) -> Value:
    return g.subtract(g.single(1.0), g.multiply(y, y))


def recurrent_product(
    g: GraphBuilder, matrix: Value, shape: tuple[int, int], *, transposed: bool
) -> Callable[[GraphBuilder, Value, Value], Value]:
    """x -> x M + y for bodies of scans, with M = ``matrix`` [K, N], or its transpose where it is [N, K]. shape: K, N.
    The product of one row walks down M a few columns at a time. In a large matrix every row of those is a page of its
    own; blocks [N / 32, K, 32], each walked through from end to end, are read up to twice as fast."""
    inner, outer = shape
    if inner * outer < LARGE or outer % BLOCK:
        plain = g.transpose(matrix) if transposed else matrix
        return lambda q, rows, add: q.op("Gemm", rows, plain, add)
    shaped, order = ((-1, BLOCK, inner), (0, 2, 1)) if transposed else ((inner, -1, BLOCK), (1, 0, 2))
    blocks = g.transpose(g.reshape(matrix, *shaped), *order)

    def product(q: GraphBuilder, rows: Value, add: Value) -> Value:
        return q.add(q.reshape(q.transpose(q.matmul(rows, blocks), 1, 0, 2), -1, outer), add)

    return product


def quantized_lstm(
    g: GraphBuilder, x: Value, name: str, bias: Value, size: int, h: Value = "", c: Value = ""
) -> tuple[Value, Value, Value]:
    """As :func:`export.graphs.lstm.lstm` with the int8 weights of layer ``name``; from a zero state unless given."""
    w, w_scale = g.quantized(f"{name}.W", lead=1)
    r, r_scale = g.quantized(f"{name}.R", lead=1)
    zero = g.constant([0], "int8")
    both = g.concat(g.unsqueeze(bias, 0), g.constant([[0.0] * (4 * size)], "float32"), axis=1)
    inputs = (x, w, r, both, "", h, c, "", w_scale, zero, r_scale, zero)
    y, h_next, c_next = g.ops("DynamicQuantizeLSTM", 3, *inputs, hidden_size=size, domain=MICROSOFT)
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
