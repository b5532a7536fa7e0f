"""Convolutions. N: rows; G: groups; I, O: channels in and out of a group; K: places of the kernel; L: places of the
output. x: [N, G I, ...]; w: [G O, I, ...]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx

from export.autodiff.graph import NotDifferentiable, place
from export.autodiff.rules.rule import Attributes, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import GraphBuilder, Value


@dataclass(frozen=True, slots=True)
class _Sizes:
    group: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def axes(self) -> range:
        return range(2, 2 + len(self.kernel))

    @property
    def reach(self) -> list[int]:
        return [(size - 1) * step for size, step in zip(self.kernel, self.dilations, strict=True)]


def _sizes(tape: Tape, node: onnx.NodeProto, attributes: Attributes) -> _Sizes:
    kernel = tape.shape(node.input[1])[2:]
    ones = [1] * len(kernel)
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    padding = attributes.get("auto_pad", b"NOTSET")
    if padding not in (b"NOTSET", b"VALID"):
        raise NotDifferentiable(f"{place(node)}: auto_pad {padding.decode()!r}; expected pads in numbers")
    strides, dilations = (tuple(attributes.get(name, ones)) for name in ("strides", "dilations"))
    half = len(kernel)
    return _Sizes(attributes.get("group", 1), kernel, strides, dilations, tuple(pads[:half]), tuple(pads[half:]))


def _convolution(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    (x, w, *bias), d = node.input, given[0]
    assert d is not None
    sizes = _sizes(tape, node, attributes)
    if bias and tape.needs(bias[0]):
        tape.give(bias[0], tape.g.sum(d, 0, *sizes.axes))
    if tape.needs(x):
        tape.give(x, _by_input(tape, x, w, node.output[0], d, sizes))
    if tape.needs(w):
        tape.give(w, _by_kernel(tape, x, w, node.output[0], d, sizes))


def _by_input(tape: Tape, x: Value, w: Value, y: Value, d: Value, sizes: _Sizes) -> Value:
    """A transposed convolution; for stride 1 a plain one with the kernel turned around, which runs faster."""
    g, (out_all, in_each) = tape.g, tape.shape(w)[:2]
    group, kernel, space = sizes.group, list(sizes.kernel), len(sizes.kernel)
    fits = all(pad <= reach for pad, reach in zip((*sizes.before, *sizes.after), sizes.reach * 2, strict=True))
    if set(sizes.strides) == {1} and fits:
        turned = w
        if max(kernel) > 1:
            turned = _sliced(g, w, [-1] * space, [-(1 << 31)] * space, list(sizes.axes), [-1] * space)
        if not (in_each == 1 and out_all == group):
            turned = g.reshape(turned, group, out_all // group, in_each, *kernel)
            turned = g.transpose(turned, 0, 2, 1, *range(3, 3 + space))
            turned = g.reshape(turned, group * in_each, out_all // group, *kernel)
        pads = [reach - pad for pad, reach in zip((*sizes.before, *sizes.after), sizes.reach * 2, strict=True)]
        return g.op("Conv", d, turned, group=group, dilations=list(sizes.dilations), pads=pads, kernel_shape=kernel)
    whole = g.op(
        "ConvTranspose",
        d,
        w,
        group=group,
        dilations=list(sizes.dilations),
        strides=list(sizes.strides),
        kernel_shape=kernel,
    )
    # It covers (L - 1) stride + reach + 1 places of the padded input; those that the stride never reached get nothing.
    covered = [
        (out - 1) * stride + reach + 1
        for out, stride, reach in zip(tape.shape(y)[2:], sizes.strides, sizes.reach, strict=True)
    ]
    missing = [size + pad - have for size, pad, have in zip(tape.shape(x)[2:], sizes.before, covered, strict=True)]
    return g.op("Pad", whole, g.integers(0, 0, *(-pad for pad in sizes.before), 0, 0, *missing))


def _by_kernel(tape: Tape, x: Value, w: Value, y: Value, d: Value, sizes: _Sizes) -> Value:
    g, space, group = tape.g, len(sizes.kernel), sizes.group
    out_all, in_each = tape.shape(w)[:2]
    rows, places = tape.shape(x)[0], tape.shape(y)[2:]
    padded = x
    if any((*sizes.before, *sizes.after)):
        padded = g.op("Pad", x, g.integers(0, 0, *sizes.before, 0, 0, *sizes.after))
    if in_each == 1 and out_all == group and rows == 1:
        # Depthwise: a convolution of each channel by its cotangent, steps and gaps exchanged.
        kernels = g.transpose(d, 1, 0, *sizes.axes)
        found = g.op("Conv", padded, kernels, group=group, strides=list(sizes.dilations), dilations=list(sizes.strides))
        if max(sizes.strides) > 1:
            found = _sliced(g, found, [0] * space, list(sizes.kernel), list(sizes.axes))
        return tape.reshaped(found, w)
    patches: list[Value] = []  # what each place of the kernel meets, [N, G, I, 1, L]
    for at in np.ndindex(*sizes.kernel):
        starts = [place * step for place, step in zip(at, sizes.dilations, strict=True)]
        stops = [
            (count - 1) * stride + start + 1 for count, stride, start in zip(places, sizes.strides, starts, strict=True)
        ]
        bounds = (starts, stops, list(sizes.axes), list(sizes.strides))
        met = padded if prod(sizes.kernel) == 1 == max(sizes.strides) else _sliced(g, padded, *bounds)
        patches.append(g.reshape(met, rows, group, in_each, 1, prod(places)))
    unfolded = g.reshape(g.concat(*patches, axis=3), rows, group, -1, prod(places))
    cotangent = g.reshape(d, rows, group, out_all // group, prod(places))
    if rows == 1:
        found = g.matmul(cotangent, g.transpose(unfolded, 0, 1, 3, 2))
    else:
        left = g.reshape(g.transpose(cotangent, 1, 2, 0, 3), group, out_all // group, -1)
        right = g.reshape(g.transpose(unfolded, 1, 0, 3, 2), group, -1, in_each * prod(sizes.kernel))
        found = g.matmul(left, right)
    return tape.reshaped(found, w)


def _sliced(g: GraphBuilder, value: Value, *bounds: Sequence[int]) -> Value:
    """bounds: starts, ends, axes, steps."""
    return g.op("Slice", value, *(g.integers(*each) for each in bounds))


RULES: Mapping[str, Rule] = {"Conv": _convolution}
