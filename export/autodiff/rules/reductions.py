"""Sums, means and extremes along axes, and the softmax."""

from collections.abc import Mapping, Sequence
from math import prod

import onnx

from export.autodiff.rules.rule import Attributes, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import FLOAT, Value


def _reduce(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    g, x, y, d, kind = tape.g, node.input[0], node.output[0], given[0], node.op_type
    assert d is not None
    axes = _axes(tape, node, attributes)
    if not attributes.get("keepdims", 1) and axes:
        d, y = g.unsqueeze(d, *axes), g.unsqueeze(y, *axes)
    match kind:
        case "ReduceSum" | "ReduceMean":
            if kind == "ReduceMean":
                d = g.multiply(d, g.single(1.0 / prod(tape.shape(x)[axis] for axis in axes)))
            tape.give(x, g.expand(d, *tape.shape(x)))
        case "ReduceSumSquare":
            tape.give(x, g.multiply(g.multiply(x, g.single(2.0)), d))
        case "ReduceL2":
            tape.give(x, g.multiply(x, g.op("Div", d, y)))
        case "ReduceLogSumExp":
            tape.give(x, g.multiply(g.op("Exp", g.subtract(x, y)), d))
        case _:  # of extremes, those that are equal share
            chosen = g.cast(g.op("Equal", x, y), FLOAT)
            tape.give(x, g.multiply(chosen, g.op("Div", d, tape.summed(chosen, axes, keep=True))))


def _axes(tape: Tape, node: onnx.NodeProto, attributes: Attributes) -> list[int]:
    rank = tape.rank(node.input[0])
    axes = attributes.get("axes") or tape.whole_numbers(node, 1)
    if not axes:
        return [] if attributes.get("noop_with_empty_axes") else list(range(rank))
    return sorted(axis % rank for axis in axes)


def _softmax(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    g, y, d = tape.g, node.output[0], given[0]
    assert d is not None
    axis = attributes.get("axis", -1)
    if node.op_type == "Softmax":
        tape.give(node.input[0], g.multiply(y, g.subtract(d, g.sum(g.multiply(d, y), axis, keep=True))))
    else:
        tape.give(node.input[0], g.subtract(d, g.multiply(g.op("Exp", y), g.sum(d, axis, keep=True))))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "ReduceLogSumExp"), _reduce),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
}
