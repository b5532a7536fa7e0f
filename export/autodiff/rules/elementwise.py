"""Operators that work value by value, those of two inputs with broadcasting."""

from collections.abc import Callable, Mapping, Sequence
from math import pi, sqrt

import onnx

from export.autodiff.rules.rule import Attributes, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import FLOAT, GraphBuilder, Value

Slope = Callable[[GraphBuilder, Value, Value, Value, Attributes], Value]
"""(builder, x, y, y', attributes) -> x'"""


def _unary(slope: Slope) -> Rule:
    def rule(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
        assert given[0] is not None
        tape.give(node.input[0], slope(tape.g, node.input[0], node.output[0], given[0], attributes))

    return rule


def _where_positive(g: GraphBuilder, x: Value, d: Value, below: Value) -> Value:
    return g.op("Where", g.op("Greater", x, g.single(0.0)), d, below)


_UNARY: Mapping[str, Slope] = {
    "Identity": lambda g, x, y, d, _: d,
    "Dropout": lambda g, x, y, d, _: d,  # of inference
    "Cast": lambda g, x, y, d, _: d,  # between values of float32, as all that is differentiated
    "Neg": lambda g, x, y, d, _: g.op("Neg", d),
    "Abs": lambda g, x, y, d, _: g.multiply(d, g.op("Sign", x)),
    "Exp": lambda g, x, y, d, _: g.multiply(d, y),
    "Log": lambda g, x, y, d, _: g.op("Div", d, x),
    "Sqrt": lambda g, x, y, d, _: g.op("Div", g.multiply(d, g.single(0.5)), y),
    "Reciprocal": lambda g, x, y, d, _: g.op("Neg", g.multiply(d, g.multiply(y, y))),
    "Sin": lambda g, x, y, d, _: g.multiply(d, g.op("Cos", x)),
    "Cos": lambda g, x, y, d, _: g.op("Neg", g.multiply(d, g.op("Sin", x))),
    "Tanh": lambda g, x, y, d, _: g.multiply(d, g.subtract(g.single(1.0), g.multiply(y, y))),
    "Sigmoid": lambda g, x, y, d, _: g.multiply(d, g.multiply(y, g.subtract(g.single(1.0), y))),
    "Softplus": lambda g, x, y, d, _: g.multiply(d, g.op("Sigmoid", x)),
    "Relu": lambda g, x, y, d, _: _where_positive(g, x, d, g.single(0.0)),
    "LeakyRelu": lambda g, x, y, d, a: _where_positive(g, x, d, g.multiply(d, g.single(a.get("alpha", 0.01)))),
    "Elu": lambda g, x, y, d, a: _where_positive(g, x, d, g.multiply(d, g.add(y, g.single(a.get("alpha", 1.0))))),
    "Erf": lambda g, x, y, d, _: g.multiply(
        d, g.multiply(g.single(2.0 / sqrt(pi)), g.op("Exp", g.op("Neg", g.multiply(x, x))))
    ),
}


def _clip(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    g, x, d = tape.g, node.input[0], given[0]
    assert d is not None
    for bound, beyond in zip(node.input[1:], ("Less", "Greater"), strict=False):
        if bound:
            d = g.op("Where", g.op(beyond, x, bound), g.single(0.0), d)
    tape.give(x, d)


def _binary(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    """Add, Sub, Mul, Div."""
    g, (x, y), z, d, kind = tape.g, node.input, node.output[0], given[0], node.op_type
    assert d is not None
    shape = tape.shape(z)
    if tape.needs(x):
        tape.give(x, tape.unbroadcast(d if kind in ("Add", "Sub") else g.op(kind, d, y), x, shape))
    if not tape.needs(y):
        return
    match kind:
        case "Mul":
            d = g.multiply(d, x)
        case "Div":
            d = g.op("Div", g.multiply(d, z), y)
    d = tape.unbroadcast(d, y, shape)
    tape.give(y, g.op("Neg", d) if kind in ("Sub", "Div") else d)  # the sign after the sum, which is smaller


def _sum(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    """Sum, Mean of several inputs."""
    d, shape = given[0], tape.shape(node.output[0])
    assert d is not None
    if node.op_type == "Mean":
        d = tape.g.multiply(d, tape.g.single(1.0 / len(node.input)))
    for x in node.input:
        if tape.needs(x):
            tape.give(x, tape.unbroadcast(d, x, shape))


def _pow(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    g, (x, power), y, d = tape.g, node.input, node.output[0], given[0]
    assert d is not None
    exponent, shape = tape.constant(power), tape.shape(y)
    if tape.needs(x):
        if exponent is not None and exponent.size == 1:
            e = float(exponent.reshape(()))
            if e == 2.0:
                slope = g.multiply(x, g.single(2.0))
            else:
                slope = g.multiply(g.op("Pow", x, g.single(e - 1.0)), g.single(e))
        else:
            slope = g.multiply(g.op("Pow", x, g.subtract(power, g.single(1.0))), power)
        tape.give(x, tape.unbroadcast(g.multiply(d, slope), x, shape))
    if tape.needs(power):
        tape.give(power, tape.unbroadcast(g.multiply(d, g.multiply(y, g.op("Log", x))), power, shape))


def _extreme(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    """Max, Min: inputs that are equal share, as torch has it: so max(0, x) + log(1 + e^-|x|) is smooth at 0."""
    g, y, d = tape.g, node.output[0], given[0]
    assert d is not None
    chosen = [g.cast(g.op("Equal", x, y), FLOAT) for x in node.input]
    share = g.op("Div", d, chosen[0] if len(chosen) == 1 else g.op("Sum", *chosen))
    for x, own in zip(node.input, chosen, strict=True):
        if tape.needs(x):
            tape.give(x, tape.unbroadcast(g.multiply(share, own), x, tape.shape(y)))


def _where(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    g, (condition, x, y), d = tape.g, node.input, given[0]
    assert d is not None
    for value, branches in ((x, (d, g.single(0.0))), (y, (g.single(0.0), d))):
        if tape.needs(value):
            d_value = g.op("Where", condition, *branches)
            tape.give(value, tape.unbroadcast(d_value, value, tape.shape(node.output[0])))


RULES: Mapping[str, Rule] = {
    **{kind: _unary(slope) for kind, slope in _UNARY.items()},
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _binary),
    **dict.fromkeys(("Sum", "Mean"), _sum),
    **dict.fromkeys(("Max", "Min"), _extreme),
    "Clip": _clip,
    "Pow": _pow,
    "Where": _where,
}
