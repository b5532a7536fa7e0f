"""Layer normalization, and batch normalization with its statistics as they are."""

from collections.abc import Mapping, Sequence

import onnx

from export.autodiff.rules.rule import Attributes, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import Value


def _layer(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    g, (x, scale, *bias), d = tape.g, node.input, given[0]
    assert d is not None
    rank = tape.rank(x)
    first = attributes.get("axis", -1) % rank
    axes = g.integers(*range(first, rank))
    centred = g.subtract(x, g.op("ReduceMean", x, axes))
    variance = g.op("ReduceMean", g.multiply(centred, centred), axes)
    deviation = g.op("Sqrt", g.add(variance, g.single(attributes.get("epsilon", 1e-5))))
    normal = g.op("Div", centred, deviation)
    if bias and tape.needs(bias[0]):
        tape.give(bias[0], tape.unbroadcast(d, bias[0], tape.shape(x)))
    if tape.needs(scale):
        tape.give(scale, tape.unbroadcast(g.multiply(d, normal), scale, tape.shape(x)))
    if tape.needs(x):
        d_normal = g.multiply(d, scale)
        along = g.multiply(normal, g.op("ReduceMean", g.multiply(d_normal, normal), axes))
        rest = g.subtract(g.subtract(d_normal, g.op("ReduceMean", d_normal, axes)), along)
        tape.give(x, g.op("Div", rest, deviation))


def _batch(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    g, (x, scale, bias, mean, variance), d = tape.g, node.input, given[0]
    assert d is not None
    rank = tape.rank(x)
    aside, column = [axis for axis in range(rank) if axis != 1], [1, -1, *[1] * (rank - 2)]
    inverse = g.op("Reciprocal", g.op("Sqrt", g.add(variance, g.single(attributes.get("epsilon", 1e-5)))))
    if tape.needs(bias):
        tape.give(bias, tape.summed(d, aside))
    if tape.needs(scale):
        centred = g.subtract(x, g.reshape(mean, *column))
        tape.give(scale, g.multiply(tape.summed(g.multiply(d, centred), aside), inverse))
    if tape.needs(x):
        tape.give(x, g.multiply(d, g.reshape(g.multiply(scale, inverse), *column)))


RULES: Mapping[str, Rule] = {"LayerNormalization": _layer, "BatchNormalization": _batch}
