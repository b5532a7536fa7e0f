"""Operators that move values without changing them."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

from export.autodiff.graph import NotDifferentiable, place
from export.autodiff.rules.rule import Attributes, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import Value


def _reshape(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    assert given[0] is not None
    tape.give(node.input[0], tape.reshaped(given[0], node.input[0]))


def _transpose(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    assert given[0] is not None
    order = attributes.get("perm") or range(tape.rank(node.input[0]))[::-1]
    tape.give(node.input[0], tape.g.transpose(given[0], *map(int, np.argsort(order))))


def _concat(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    assert given[0] is not None
    axis, at = attributes["axis"] % tape.rank(node.output[0]), 0
    for x in node.input:
        size = tape.shape(x)[axis]
        if tape.needs(x):
            tape.give(x, tape.g.slice(given[0], at, at + size, axis))
        at += size


def _split(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    axis, at = attributes.get("axis", 0) % tape.rank(node.input[0]), 0
    for y, d in zip(node.output, given, strict=True):
        size = tape.shape(y)[axis]
        if d is not None:
            tape.give_part(node.input[0], d, axis, at, at + size)
        at += size


def _slice(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    x, d = node.input[0], given[0]
    assert d is not None
    shape, rank = tape.shape(x), tape.rank(x)
    starts, ends, axes, steps = (tape.whole_numbers(node, index) for index in (1, 2, 3, 4))
    assert starts is not None and ends is not None
    axes = list(range(len(starts))) if axes is None else [axis % rank for axis in axes]
    taken: list[tuple[int, range]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        size = shape[axis]
        # ONNX says "to the very first" backwards by an end below -size.
        stop = None if step < 0 and end < -size else end
        span = range(size)[slice(start, stop, step)]
        if span != range(size):
            taken.append((axis, span))
    if not taken:
        tape.give(x, d)
    elif len(taken) == 1 and taken[0][1].step == 1:
        axis, span = taken[0]
        tape.give_part(x, d, axis, span.start, span.stop)
    else:
        for axis, span in taken:
            d = _scattered(tape, d, list(span), axis, rank, shape[axis])
        tape.give(x, d)


def _scattered(tape: Tape, d: Value, places: Sequence[int], axis: int, rank: int, size: int) -> Value:
    """Zeros, but the rows of ``d`` along an axis added at ``places``: a product with a matrix of zeros and ones."""
    matrix = np.zeros((len(places), size), np.float32)
    matrix[np.arange(len(places)), places] = 1.0
    order = [*(each for each in range(rank) if each != axis), axis]
    last = d if axis == rank - 1 else tape.g.transpose(d, *order)
    found = tape.g.matmul(last, tape.g.constant(matrix, np.float32))
    return found if axis == rank - 1 else tape.g.transpose(found, *map(int, np.argsort(order)))


def _gather(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    (x, index), d, g = node.input, given[0], tape.g
    assert d is not None
    rank, shape = tape.rank(x), tape.shape(x)
    axis = attributes.get("axis", 0) % rank
    known, count = tape.constant(index), tape.rank(index)
    if known is not None and known.size == 1:
        at = int(known.reshape(())) % shape[axis]
        tape.give_part(x, g.reshape(d, *shape[:axis], 1, *shape[axis + 1 :]), axis, at, at + 1)
        return
    if count != 1:
        d = g.reshape(d, *shape[:axis], -1, *shape[axis + 1 :])
    if known is not None and known.size * shape[axis] < 1 << 16:
        tape.give(x, _scattered(tape, d, [int(at) % shape[axis] for at in known.reshape(-1)], axis, rank, shape[axis]))
        return
    order = [axis, *(each for each in range(rank) if each != axis)]
    rows = g.transpose(d, *order) if axis else d
    zeros = tape.zeros([shape[each] for each in order])
    found = g.op("ScatterND", zeros, g.reshape(index, -1, 1), rows, reduction="add")
    tape.give(x, g.transpose(found, *map(int, np.argsort(order))) if axis else found)


def _gather_elements(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    (x, index), d = node.input, given[0]
    assert d is not None
    zeros, axis = tape.zeros(tape.shape(x)), attributes.get("axis", 0)
    tape.give(x, tape.g.op("ScatterElements", zeros, index, d, axis=axis, reduction="add"))


def _pad(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    x, d = node.input[0], given[0]
    assert d is not None
    if attributes.get("mode", b"constant") != b"constant":
        raise NotDifferentiable(f"{place(node)}: mode {attributes['mode'].decode()!r}; expected 'constant'")
    pads, axes, rank = tape.whole_numbers(node, 1), tape.whole_numbers(node, 3), tape.rank(x)
    assert pads is not None
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    before, after = [0] * rank, [0] * rank
    for number, axis in enumerate(axes):
        before[axis], after[axis] = pads[number], pads[len(axes) + number]
    tape.give(x, tape.g.op("Pad", d, tape.g.integers(*(-each for each in (*before, *after)))))


def _expand(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    assert given[0] is not None
    x = node.input[0]
    tape.give(x, tape.unbroadcast(given[0], x, tape.shape(node.output[0])))


def _tile(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], _: Attributes) -> None:
    x, d = node.input[0], given[0]
    assert d is not None
    own, whole = tape.shape(x), tape.shape(node.output[0])
    pairs = [each for out, size in zip(whole, own, strict=True) for each in (out // size, size)]
    apart = tape.g.reshape(d, *pairs)
    tape.give(x, tape.summed(apart, range(0, 2 * len(own), 2)))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Reshape", "Squeeze", "Unsqueeze", "Flatten"), _reshape),
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
}
