"""The training graph: one graph for every objective that weighs the hypotheses of one utterance.

    loss = sum_i w_i NLL_i + c E[M],    E[M] = sum_i p_i M_i,    p = softmax(-NLL)        (Rao et al. 2023, eq. 1)

    dE[M]/dNLL_i = p_i (E[M] - M_i)

Gradients are written out by hand, so plain onnxruntime trains. The N hypotheses share one encoder pass."""

from collections.abc import Callable, Sequence
from functools import reduce

from device_sdk.bundle.architecture import Architecture, Frozen, Subset, factor_names, frozen_part, trainable
from device_sdk.bundle.streaming import AnyArchitecture, StatelessPredictor, StreamingArchitecture
from export.graphs.builder import DOUBLE, FLOAT, INT64, GraphBuilder, Shape, Value
from export.graphs.joint import Joint, distinct_prefixes, lattice
from export.graphs.lstm import Trace, lstm, lstm_gradients, matrix_gradients, traced_lstm
from export.graphs.streaming import previous_tokens, stacked_frames

EMBEDDING = "predictor.embedding"
OUTPUT, OUTPUT_BIAS = "joiner.output.weight", "joiner.output.bias"


def training(architecture: AnyArchitecture, subset: Subset = "whole") -> bytes:
    """The training graph of a subset of the parameters: nothing that its gradients do not need is in it.

    F: frames; M: mel bins; T: stacked frames; N: hypotheses; U: longest hypothesis; r: rank.

    Inputs: features [F, M] float32 raw log-mel, F >= K; tokens [N, U] int64, padded with 0; lengths [N] int64; weights
    [N], costs [N], cost_scale [] float32; where an LSTM encoder is trained, pull [T, J] float32, the derivative of what
    else the loss is of by the joiner's encoder term (:mod:`export.graphs.phones`); every parameter and constant that is
    read, by its name, float32. Outputs: negative_log_likelihoods [N], expected_cost [], ``gradient.NAME`` for every
    trainable parameter, float32.

    Frozen layers are not part of the graph; it takes their outputs ``encoder_hidden`` [T, 1, H] in place of features,
    and ``predictor_hidden`` [U + 1, N, P] (:func:`export.graphs.streaming`). A streaming encoder is outside, too: its
    output [T, J], without the joiner's bias, is ``encoder_hidden``, whose gradient is given where its weights are
    wanted. The gradients of ``adapters`` are by factors beside
    the matrices [out, in], ``NAME.up`` [out, r] and ``NAME.down`` [r, in], further inputs; the matrices that come in
    hold the factors' products already."""
    shapes, wanted = architecture.parameter_shapes(), frozenset(trainable(architecture, subset))
    beneath, factors = frozen_part(architecture, subset), subset == "adapters"
    g = GraphBuilder(architecture)
    tokens, lengths = g.input("tokens", ["N", "U"], INT64), g.input("lengths", ["N"], INT64)
    weights, costs, cost_scale = g.input("weights", ["N"]), g.input("costs", ["N"]), g.input("cost_scale", [])
    for name, shape in (shapes | architecture.constant_shapes()).items():
        g.input(name, shape)
    given: dict[str, Shape] = dict(shapes)
    if factors:
        for name in (each for each in shapes if each in wanted):
            (out, width), (up, down) = shapes[name], factor_names(name)
            given |= {up: (out, "r"), down: ("r", width)}
            g.input(up, given[up])
            g.input(down, given[down])
    by_encoder = any(name.startswith(("encoder.", "joiner.encoder.")) for name in wanted)
    by_predictor = any(name.startswith(("predictor.", "joiner.predictor.")) for name in wanted)

    # Forwards: networks, joint, lattice.
    frames, encoder_gradients = _frames(g, architecture, beneath, by_encoder, factors)
    count, previous = g.size(tokens, 0), previous_tokens(g, tokens)
    representatives, prefix_of = distinct_prefixes(g, tokens, lengths)
    if architecture.predictor_layers:
        prefixes, predictor_gradients = _prefixes(g, previous, representatives, beneath, by_predictor, factors)
    else:
        prefixes, predictor_gradients = _stateless_prefixes(g, architecture, previous, representatives, factors)

    labels = g.reshape(g.concat(g.transpose(tokens), g.expand(g.integer(0), 1, count), axis=0), -1)
    joint = Joint(g, frames, prefixes, prefix_of, labels, OUTPUT, OUTPUT_BIAS)
    cells = g.shape(-1, g.size(previous, 0), count)
    blank, label = (g.cast(g.op("Reshape", edge, cells), DOUBLE) for edge in joint.log_probabilities())
    likelihoods, by_blank, by_label = lattice(g, blank, label, lengths)
    g.output("negative_log_likelihoods", g.cast(likelihoods, FLOAT), ["N"])

    # The loss' derivative by each NLL.
    posterior, costs = g.op("Softmax", g.op("Neg", likelihoods), axis=0), g.cast(costs, DOUBLE)
    expected = g.sum(g.multiply(posterior, costs), 0)
    g.output("expected_cost", g.cast(expected, FLOAT), [])
    by_expectation = g.multiply(posterior, g.subtract(expected, costs))
    d_likelihoods = g.add(g.cast(weights, DOUBLE), g.multiply(g.cast(cost_scale, DOUBLE), by_expectation))

    # Backwards: an edge's occupancy is minus the NLL's derivative by its log-probability. All gradients are written
    # down here; those that no output asks for are never part of the graph.
    def flatten(occupancy: Value) -> Value:
        return g.reshape(g.cast(g.multiply(occupancy, d_likelihoods), FLOAT), -1, g.size(labels, 0))

    sides = {side for side, needed in (("frames", by_encoder), ("prefixes", by_predictor)) if needed}
    gradients = joint.gradients(flatten(by_blank), flatten(by_label), wanted | sides, factors)

    if by_predictor:
        gradients |= predictor_gradients(gradients["prefixes"])
    if by_encoder:
        d_frames = gradients["frames"]
        if isinstance(architecture, Architecture):
            d_frames = g.add(d_frames, g.input("pull", ["T", architecture.joiner_size]))
        gradients |= encoder_gradients(d_frames)

    if isinstance(architecture, StreamingArchitecture) and any(name.startswith("encoder.") for name in wanted):
        g.output("gradient.encoder_hidden", gradients["encoder_hidden"], ["T", architecture.joiner_size])
    for name in shapes:
        if name in wanted and not (isinstance(architecture, StreamingArchitecture) and name.startswith("encoder.")):
            for each in factor_names(name) if factors else (name,):
                g.output(f"gradient.{each}", gradients[each], given[each])
    return g.finish("training")


Backward = Callable[[Value], dict[str, Value]]
"""From a side's derivative to the gradients of its parameters."""


def _frames(
    g: GraphBuilder, architecture: AnyArchitecture, beneath: Frozen, traced: bool, factors: bool
) -> tuple[Value, Backward]:
    """The joiner's encoder term [T, J]."""
    bias = "joiner.encoder.bias"
    if isinstance(architecture, StreamingArchitecture):
        given = g.input("encoder_hidden", ["T", architecture.joiner_size])
        return g.add(given, bias), lambda d_frames: {bias: g.sum(d_frames, 0), "encoder_hidden": d_frames}
    if beneath.encoder_layers:
        below = g.input("encoder_hidden", ["T", 1, architecture.encoder_size])
    else:
        features = g.input("features", ["F", architecture.mel_bins])
        below = stacked_frames(g, features, "features.mean", "features.scale")
    hidden, traces = _layers(g, below, "encoder", beneath.encoder_layers, traced=traced)
    rows = g.squeeze(hidden, 1)

    def backward(d_frames: Value) -> dict[str, Value]:
        gradients = matrix_gradients(g, "joiner.encoder.weight", d_frames, rows, factors=factors)
        gradients[bias] = g.sum(d_frames, 0)
        d_hidden = g.reshape(g.matmul(d_frames, "joiner.encoder.weight"), -1, 1, architecture.encoder_size)
        return gradients | _stack_gradients(g, traces, d_hidden, "encoder", beneath.encoder_layers, factors=factors)[0]

    return g.op("Gemm", rows, "joiner.encoder.weight", bias, transB=1), backward


def _prefixes(
    g: GraphBuilder, previous: Value, representatives: Value, beneath: Frozen, traced: bool, factors: bool
) -> tuple[Value, Backward]:
    """The joiner's prediction term of the distinct prefixes, by LSTM layers. previous: [U + 1, N] int64."""
    sizes, traces = g.sizes, list[Trace]()
    if beneath.predictor:
        hidden = g.input("predictor_hidden", ["S", "N", sizes.predictor_size])
    else:
        embedded = g.op("Gather", "predictor.embedding", previous, axis=0)
        hidden, traces = _layers(g, embedded, "predictor", traced=traced)
    rows = g.reshape(hidden, -1, sizes.predictor_size)
    chosen = g.op("Gather", rows, representatives, axis=0)

    def backward(d_prefixes: Value) -> dict[str, Value]:
        gradients = matrix_gradients(g, "joiner.predictor.weight", d_prefixes, chosen, factors=factors)
        # Equal prefixes are equal functions of the parameters, so the first of them may answer for all.
        nothing = g.expand(g.single(0.0), g.size(rows, 0), sizes.predictor_size)
        d_rows = g.matmul(d_prefixes, "joiner.predictor.weight")
        d_rows = g.op("ScatterND", nothing, g.unsqueeze(representatives, 1), d_rows)
        d_hidden = g.reshape(d_rows, -1, g.size(previous, 1), sizes.predictor_size)
        found, d_embedded = _stack_gradients(g, traces, d_hidden, "predictor", factors=factors)
        d_embedded = g.reshape(d_embedded, -1, sizes.embedding_size)
        return gradients | found | {EMBEDDING: _embedding_gradient(g, [(g.reshape(previous, -1, 1), d_embedded)])}

    return g.op("Gemm", chosen, "joiner.predictor.weight", transB=1), backward


def _stateless_prefixes(
    g: GraphBuilder, architecture: AnyArchitecture, previous: Value, representatives: Value, factors: bool
) -> tuple[Value, Backward]:
    """The same by a convolution over the last tokens' embeddings. R: prefixes; G: groups; C: channels of a group."""
    assert isinstance(architecture, StreamingArchitecture) and isinstance(architecture.predictor, StatelessPredictor)
    sizes, name = architecture.predictor, "predictor.convolution"
    groups, group, count = sizes.size // sizes.group, sizes.group, g.size(previous, 1)

    def grouped(rows: Value) -> Value:
        return g.transpose(g.reshape(rows, -1, groups, group), 1, 0, 2)

    def joined(rows: Value) -> Value:
        return g.reshape(g.transpose(rows, 1, 0, 2), -1, sizes.size)

    places: list[Value] = []
    inputs: list[Value] = []
    spoken: list[Value] = []
    for back in reversed(range(sizes.context)):
        steps = g.size(previous, 0)
        padded = g.concat(*[g.expand(g.integer(-1), 1, count)] * back, previous, axis=0)
        token = g.op("Gather", g.reshape(g.slice(padded, g.integers(0), steps, 0), -1), representatives, axis=0)
        places.append(g.unsqueeze(g.op("Max", token, g.integer(0)), 1))
        spoken.append(g.unsqueeze(g.cast(g.op("GreaterOrEqual", token, g.integer(0)), FLOAT), 1))
        inputs.append(g.multiply(g.op("Gather", EMBEDDING, g.squeeze(places[-1], 1), axis=0), spoken[-1]))
    kernels = [  # [G, C in, C out] of each place
        g.transpose(g.reshape(g.slice(name, place, place + 1, 2), groups, group, group), 0, 2, 1)
        for place in range(sizes.context if sizes.context > 1 else 0)
    ]
    mixed = inputs[0]
    if kernels:
        products = [g.matmul(grouped(x), kernel) for x, kernel in zip(inputs, kernels, strict=True)]
        mixed = joined(reduce(g.add, products))
    said = g.op("Relu", mixed)

    def backward(d_prefixes: Value) -> dict[str, Value]:
        gradients = matrix_gradients(g, "joiner.predictor.weight", d_prefixes, said, factors=factors)
        active = g.cast(g.op("Greater", mixed, g.single(0.0)), FLOAT)
        d_mixed = g.multiply(g.matmul(d_prefixes, "joiner.predictor.weight"), active)
        d_inputs = [d_mixed]
        if kernels:
            dy = grouped(d_mixed)
            d_inputs = [joined(g.matmul(dy, g.transpose(kernel, 0, 2, 1))) for kernel in kernels]
            found = [g.matmul(g.transpose(dy, 0, 2, 1), grouped(x)) for x in inputs]  # [G, C out, C in]
            gradients[name] = g.concat(*(g.reshape(each, sizes.size, group, 1) for each in found), axis=2)
        rows = [(place, g.multiply(d, own)) for place, d, own in zip(places, d_inputs, spoken, strict=True)]
        return gradients | {EMBEDDING: _embedding_gradient(g, rows)}

    return g.op("Gemm", said, "joiner.predictor.weight", transB=1), backward


def _embedding_gradient(g: GraphBuilder, rows: Sequence[tuple[Value, Value]]) -> Value:
    """[V, E] from (tokens [R, 1], their derivatives [R, E])."""
    total = g.expand(g.single(0.0), g.sizes.pieces, g.sizes.embedding_size)
    for places, derivative in rows:
        total = g.op("ScatterND", total, places, derivative, reduction="add")
    return total


def _layers(g: GraphBuilder, x: Value, name: str, first: int = 0, *, traced: bool) -> tuple[Value, list[Trace]]:
    """A stack's layers from ``first`` up, from a zero state: its output [steps, B, size], and, where they are to be
    walked back, each layer's trace."""
    layers = g.architecture.encoder_layers if name == "encoder" else g.sizes.predictor_layers
    traces: list[Trace] = []
    for layer in range(first, layers):
        weights = [f"{name}.{layer}.{part}" for part in "WRB"]
        if traced:
            traces.append(traced_lstm(g, x, weights, _size(g, name)))
            x = traces[-1].y
        else:
            x = lstm(g, x, weights, _size(g, name))[0]
    return x, traces


def _stack_gradients(
    g: GraphBuilder, traces: list[Trace], dy: Value, name: str, first: int = 0, *, factors: bool
) -> tuple[dict[str, Value], Value]:
    """Gradients of a stack's layers, the lowest of which is number ``first``, and of the stack's input."""
    gradients: dict[str, Value] = {}
    for place, trace in reversed(list(enumerate(traces, first))):
        weights = [f"{name}.{place}.{part}" for part in "WRB"]
        found, dy, _ = lstm_gradients(g, trace, dy, weights, _size(g, name), factors=factors)
        gradients |= found
    return gradients, dy


def _size(g: GraphBuilder, name: str) -> int:
    return g.architecture.encoder_size if name == "encoder" else g.sizes.predictor_size
