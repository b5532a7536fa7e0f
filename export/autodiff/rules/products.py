"""Products of matrices. x: [..., A]; w: [A, B]; y = x w.

x' = y' w^T,    w' = x^T y';    by factors w = up down:    up' = x^T (y' down^T),    down' = (x up)^T y'"""

from collections.abc import Mapping, Sequence

import onnx

from export.autodiff.graph import NotDifferentiable, place
from export.autodiff.rules.rule import Attributes, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import Value


def _matmul(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    g, (x, w), y, d = tape.g, node.input, node.output[0], given[0]
    assert d is not None
    if min(tape.rank(x), tape.rank(w)) < 2:
        raise NotDifferentiable(f"{place(node)}: multiplies a vector; expected matrices")
    if tape.rank(w) == 2:
        if tape.needs(x):
            tape.give(x, g.matmul(d, tape.transposed(w)))
        if tape.needs(w):
            _weight(tape, w, tape.flattened(x, tape.shape(x)), tape.flattened(d, tape.shape(y)))
        return
    lead = tape.shape(y)[:-2]
    if tape.needs(x):
        found = g.matmul(d, _turned(tape, w))
        tape.give(x, tape.unbroadcast(found, x, (*lead, *tape.shape(x)[-2:])))
    if tape.needs(w):
        found = g.matmul(_turned(tape, x), d)
        tape.give(w, tape.unbroadcast(found, w, (*lead, *tape.shape(w)[-2:])))


def _turned(tape: Tape, value: Value) -> Value:
    rank = tape.rank(value)
    return tape.transposed(value, *range(rank - 2), rank - 1, rank - 2)


def _weight(tape: Tape, w: Value, x: Value, d: Value) -> None:
    """x: [R, A]; d: [R, B]."""
    g = tape.g
    if w in tape.factors:
        up, down = tape.factors[w]
        tape.give(up, g.op("Gemm", x, g.op("Gemm", d, down, transB=1), transA=1))
        tape.give(down, g.op("Gemm", g.matmul(x, up), d, transA=1))
    else:
        tape.give(w, g.op("Gemm", x, d, transA=1))


def _gemm(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    g, (x, w, *bias), d = tape.g, node.input, given[0]
    assert d is not None
    alpha, beta = (float(attributes.get(name, 1.0)) for name in ("alpha", "beta"))
    x_turned, w_turned = (int(attributes.get(name, 0)) for name in ("transA", "transB"))
    if bias and tape.needs(bias[0]):
        found = tape.unbroadcast(d, bias[0], tape.shape(node.output[0]))
        tape.give(bias[0], found if beta == 1.0 else g.multiply(found, g.single(beta)))
    if alpha != 1.0:
        d = g.multiply(d, g.single(alpha))
    if tape.needs(x):
        if x_turned:
            tape.give(x, g.op("Gemm", w, d, transA=w_turned, transB=1))
        else:
            tape.give(x, g.op("Gemm", d, w, transB=1 - w_turned))
    if tape.needs(w):
        rows = tape.transposed(x) if x_turned else x
        left, right = (d, rows) if w_turned else (rows, d)
        _weight(tape, w, left, right)


RULES: Mapping[str, Rule] = {"MatMul": _matmul, "Gemm": _gemm}
