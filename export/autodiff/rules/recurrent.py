"""LSTM layers, from a state to a state, without a loop over anything but their steps.

T: steps; B: rows; D: input; H: size."""

from collections.abc import Mapping, Sequence

import onnx

from export.autodiff.graph import NotDifferentiable, place
from export.autodiff.rules.rule import Attributes, Forward, Rule
from export.autodiff.tape import Tape
from export.graphs.builder import Value
from export.graphs.lstm import lstm_gradients, traced_lstm

_DEFAULTS = {"direction": b"forward", "layout": 0, "input_forget": 0, "clip": None, "activations": None}


def _names(node: onnx.NodeProto) -> list[Value]:
    """x [T, B, D], W [1, 4H, D], R [1, 4H, H], B [1, 8H], lengths, h and c [1, B, H], peepholes; "" for what is not
    there."""
    return [*node.input, *[""] * (8 - len(node.input))]


def _lstm_forward(tape: Tape, node: onnx.NodeProto, attributes: Attributes) -> None:
    """Of plain operators, since the fused one keeps neither its gates nor its cells."""
    for name, expected in _DEFAULTS.items():
        found = attributes.get(name, expected)
        usual = name == "activations" and found == [b"Sigmoid", b"Tanh", b"Tanh"]
        if found != expected and not usual:
            raise NotDifferentiable(f"{place(node)}: {name} is {found!r}; expected {expected!r}")
    g, (x, w, r, b, lengths, h, c, peepholes) = tape.g, _names(node)
    if lengths or peepholes or not b:
        raise NotDifferentiable(f"{place(node)}: has lengths or peepholes, or no bias; expected a plain layer")
    size = int(attributes["hidden_size"])
    bias = g.sum(g.reshape(b, 2, 4 * size), 0)
    weights = g.squeeze(w, 0), g.squeeze(r, 0), bias
    state = (g.squeeze(h, 0), g.squeeze(c, 0)) if h and c else None
    trace = traced_lstm(g, x, weights, size, state)
    tape.traces[node.output[0] or node.output[-1]] = trace, weights
    values = g.unsqueeze(trace.y, 1), *(g.slice(each, -1, 1 << 30, 0) for each in (trace.y, trace.cells))
    for name, value in zip(node.output, values, strict=False):
        if name:
            g.append(onnx.helper.make_node("Identity", [value], [name]))


def _lstm(tape: Tape, node: onnx.NodeProto, given: Sequence[Value | None], attributes: Attributes) -> None:
    g, (x, w, r, b, _, h, c, _) = tape.g, _names(node)
    trace, weights = tape.traces[node.output[0] or node.output[-1]]
    size, (steps, rows) = int(attributes["hidden_size"]), tape.shape(x)[:2]
    dy, *d_last = [*given, None, None][:3]
    dy = tape.zeros((steps, rows, size)) if dy is None else g.squeeze(dy, 1)
    nothing = tape.zeros((rows, size))
    d_state = [nothing if each is None else g.squeeze(each, 0) for each in d_last]
    found, dx, before = lstm_gradients(g, trace, dy, weights, size, d_state=(d_state[0], d_state[1]))
    tape.give(x, dx)
    for name, value in zip((w, r), weights, strict=False):
        tape.give(name, g.unsqueeze(found[value], 0))
    bias = g.reshape(found[weights[2]], 1, -1)
    tape.give(b, g.concat(bias, bias, axis=1))
    for name, value in zip((h, c), before, strict=True):
        if name:
            tape.give(name, g.unsqueeze(value, 0))


RULES: Mapping[str, Rule] = {"LSTM": _lstm}
FORWARD: Mapping[str, Forward] = {"LSTM": _lstm_forward}
