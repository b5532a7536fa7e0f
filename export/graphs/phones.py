"""What phones say of the encoder's output: the gradient graph of a CTC head, over the encoder that steps move.

    loss = sum_i w_i CTC_i,    CTC_i = -log p(phones of text i | audio), over all alignments (Graves et al. 2006, eq. 8)

The head itself stays as it is. Few words are corrected, of which each has pieces of its own; the phones that they are
made of are those of all others.

F: frames; M: mel bins; T: stacked frames; J: joiner size; C: phones, with blank 0; N: texts; L: places of a text, its
phones with a blank before, between and after them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from device_sdk.bundle.architecture import Architecture
from device_sdk.bundle.weights import architecture_digest
from device_sdk.runtimes.onnxruntime import ARCHITECTURE_KEY
from export.graphs.builder import DOUBLE, FLOAT, INT64, GraphBuilder, Value
from export.graphs.ctc import DIRECTIONS
from export.graphs.lstm import lstm, lstm_gradients, traced_lstm
from export.graphs.streaming import stacked_frames

IMPOSSIBLE = -1e30
"""Nats, in place of an infinity, whose differences would be none."""


def phone_gradient(parameters: Mapping[str, NDArray[np.floating]], architecture: Architecture) -> bytes:
    """The graph of a head's parameters (:meth:`export.networks.ctc.CtcHead.to_parameters`), its matrices as int8.

    Inputs: features [F, M] float32 raw log-mel, F >= K; symbols [N, L] int64, padded with 0; ends [N, L] float64, 1 at
    the two places that a text may end in; weights [N] float32; the encoder's parameters and constants by name. Outputs:
    losses [N] float32, nats; pull [T, J] float32, the loss' derivative by the encoder's term of the joiner."""
    width, cells = architecture.joiner_size, parameters["forward.R"].shape[1]
    g = GraphBuilder(architecture, weights=parameters)
    features, symbols = g.input("features", ["F", architecture.mel_bins]), g.input("symbols", ["N", "L"], INT64)
    ends, weights = g.input("ends", ["N", "L"], DOUBLE), g.input("weights", ["N"])
    for name, shape in (architecture.parameter_shapes() | architecture.constant_shapes()).items():
        g.input(name, shape)
    hidden = stacked_frames(g, features, "features.mean", "features.scale")
    for layer in range(architecture.encoder_layers):
        hidden = lstm(g, hidden, [f"encoder.{layer}.{part}" for part in "WRB"], architecture.encoder_size)[0]
    encoded = g.op("Gemm", g.squeeze(hidden, 1), "joiner.encoder.weight", "joiner.encoder.bias", transB=1)

    ahead, behind = g.unsqueeze(encoded, 1), _reversed(g, g.unsqueeze(encoded, 1))
    layers = {name: [g.rounded(f"{name}.W"), g.rounded(f"{name}.R"), g.weight(f"{name}.B")] for name in DIRECTIONS}
    traces = {name: traced_lstm(g, x, layers[name], cells) for name, x in zip(DIRECTIONS, (ahead, behind), strict=True)}
    both = g.squeeze(g.concat(traces["forward"].y, _reversed(g, traces["backward"].y), axis=2), 1)
    squashed, output, plain = g.op("Tanh", encoded), g.rounded("output.weight"), g.rounded("plain.weight")
    heard = g.op("Gemm", both, output, g.weight("output.bias"), transB=1)
    log_probs = g.op("LogSoftmax", g.add(g.op("Gemm", squashed, plain, transB=1), heard), axis=-1)

    losses, occupancy = _alignments(g, g.cast(log_probs, DOUBLE), symbols, ends)
    g.output("losses", g.cast(losses, FLOAT), ["N"])
    # A frame's logits move by what the softmax expects of them less where the alignments are.
    shares = g.reshape(g.multiply(occupancy, g.unsqueeze(g.cast(weights, DOUBLE), 1)), g.size(encoded, 0), -1)
    phones = g.constant(np.arange(parameters["output.bias"].size), np.int64)
    place = g.cast(g.op("Equal", g.reshape(symbols, -1, 1), phones), FLOAT)
    aligned = g.matmul(g.cast(shares, FLOAT), place)
    d_logits = g.subtract(g.multiply(g.op("Exp", log_probs), g.sum(weights, 0)), aligned)

    slope = g.subtract(g.single(1.0), g.multiply(squashed, squashed))
    pull = g.multiply(g.matmul(d_logits, plain), slope)
    d_ahead, d_behind = g.ops("Split", 2, g.unsqueeze(g.matmul(d_logits, output), 1), axis=2, num_outputs=2)
    for name, dy in (("forward", d_ahead), ("backward", _reversed(g, d_behind))):
        _, dx, _ = lstm_gradients(g, traces[name], dy, layers[name], cells)
        pull = g.add(pull, g.squeeze(dx if name == "forward" else _reversed(g, dx), 1))
    g.output("pull", pull, ["T", width])
    return g.finish("phones", {ARCHITECTURE_KEY: architecture_digest(architecture)})


def _reversed(g: GraphBuilder, value: Value) -> Value:
    """From the last frame to the first."""
    return g.op("Slice", value, g.integers(-1), g.integers(-(1 << 62)), g.integers(0), g.integers(-1))


def _alignments(g: GraphBuilder, log_probs: Value, symbols: Value, ends: Value) -> tuple[Value, Value]:
    """(-log p of each text [N], how often each place is visited at each frame [T, N, L]), float64. A scan adds up
    alphas; each tells which share of it came from where, and these shares lead back from the ends. log_probs: [T, C]
    float64."""
    count, places = g.size(symbols, 0), g.size(symbols, 1)
    impossible = g.double(IMPOSSIBLE)

    def moved(q: GraphBuilder, value: Value, by: int, fill: Value) -> Value:
        """Along the places."""
        return q.op("Pad", value, q.integers(0, by, 0, -by), fill)

    # A blank must part a phone from itself, and no blank is left out to reach a blank.
    before = g.op("Pad", symbols, g.integers(0, 2, 0, -2), g.integer(0))
    may = g.op("And", g.op("Greater", symbols, g.integer(0)), g.op("Not", g.op("Equal", symbols, before)))
    skips = g.op("Where", may, g.double(0.0), impossible)
    emitted = g.reshape(g.op("Gather", log_probs, g.reshape(symbols, -1), axis=1), -1, count, places)
    first = g.concat(
        g.expand(g.double(0.0), count, 1), g.expand(impossible, count, g.op("Sub", places, g.integers(1))), axis=1
    )

    def advance(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        alpha = states[0]
        ways = [alpha, moved(q, alpha, 1, impossible), q.add(moved(q, alpha, 2, impossible), skips)]
        largest = q.op("Max", *ways)
        parts = [q.op("Exp", q.subtract(way, largest)) for way in ways]
        total = q.op("Sum", *parts)
        return [q.add(q.add(largest, q.op("Log", total)), now[0])], [total, *parts]

    last, total, *parts = g.scan([first], [emitted], advance, kind=DOUBLE)
    shares = [g.op("Div", part, total) for part in parts]
    reached = g.op("Where", g.op("Greater", ends, g.double(0.0)), last, impossible)
    likelihood = g.op("ReduceLogSumExp", reached, g.integers(1), keepdims=1)
    final = g.multiply(g.op("Exp", g.subtract(reached, likelihood)), ends)

    def retreat(q: GraphBuilder, states: list[Value], now: list[Value]) -> tuple[list[Value], list[Value]]:
        stayed, stepped, skipped = (q.multiply(states[0], share) for share in now)
        none = q.double(0.0)
        return [q.op("Sum", stayed, moved(q, stepped, -1, none), moved(q, skipped, -2, none))], [states[0]]

    occupancy = g.scan([final], shares, retreat, kind=DOUBLE, reverse=True)[1]
    return g.op("Neg", g.squeeze(likelihood, 1)), occupancy
