"""The training graph: one graph for every objective that weighs the hypotheses of one utterance.

    loss = sum_i w_i NLL_i + c E[M],    E[M] = sum_i p_i M_i,    p = softmax(-NLL)        (Rao et al. 2023, eq. 1)

    dE[M]/dNLL_i = p_i (E[M] - M_i)

Gradients are written out by hand, so plain onnxruntime trains. The N hypotheses share one encoder pass.
"""

from __future__ import annotations

from collections.abc import Collection

from device_sdk.bundle.architecture import Architecture, Frozen, Subset, factor_names, frozen, trainable
from device_sdk.errors import ConfigurationError
from export.graphs.builder import DOUBLE, FLOAT, INT64, GraphBuilder, Shape, Value
from export.graphs.joint import Joint, distinct_prefixes, lattice, matrix_gradients
from export.graphs.lstm import Trace, lstm, lstm_gradients, traced_lstm
from export.graphs.streaming import stacked_frames, started

OUTPUT, OUTPUT_BIAS = "joiner.output.weight", "joiner.output.bias"


def subset_training(architecture: Architecture, subset: Subset) -> bytes:
    """The training graph of a subset of the parameters: nothing that its gradients do not need is in it."""
    return training(
        architecture, trainable(architecture, subset), frozen(architecture, subset), factors=subset == "adapters"
    )


def training(
    architecture: Architecture,
    trainable: Collection[str] | None = None,
    beneath: Frozen = Frozen(),
    *,
    factors: bool = False,
) -> bytes:
    """F: frames; M: mel bins; T: stacked frames; N: hypotheses; U: longest hypothesis; r: rank.

    Inputs: features [F, M] float32 raw log-mel, F >= K; tokens [N, U] int64, padded with 0; lengths [N] int64;
    weights [N], costs [N], cost_scale [] float32; every parameter and constant that is read, by its name, float32.
    Outputs: negative_log_likelihoods [N], expected_cost [], ``gradient.NAME`` for every trainable parameter, float32.

    trainable: parameters to return gradients for; ``None`` is all. What only others would need is left out. beneath:
    layers that are not part of the graph; it takes their outputs ``encoder_hidden`` [T, 1, H] in place of features, and
    ``predictor_hidden`` [U + 1, N, P] (:func:`export.graphs.streaming`). factors: the trainable ones are matrices
    [out, in], and the gradients are by factors beside them, ``NAME.up`` [out, r] and ``NAME.down`` [r, in], further
    inputs; the matrices that come in hold the factors' products already. Raises :class:`ConfigurationError` for an
    unknown, frozen or empty choice.
    """
    shapes = architecture.parameter_shapes()
    wanted = frozenset(shapes if trainable is None else trainable)
    if unknown := sorted(wanted - shapes.keys()):
        raise ConfigurationError(f"trainable: found unknown {unknown[0]!r}, expected the architecture's names")
    if both := sorted(wanted.intersection(beneath.parameters(architecture))):
        raise ConfigurationError(f"trainable: found {both[0]!r}, which is frozen; expected parameters above it")
    if not wanted:
        raise ConfigurationError("trainable: found no parameter, expected at least one")

    g = GraphBuilder(architecture)
    tokens = g.input("tokens", ["N", "U"], INT64)
    lengths = g.input("lengths", ["N"], INT64)
    weights = g.input("weights", ["N"])
    costs = g.input("costs", ["N"])
    cost_scale = g.input("cost_scale", [])
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
    if beneath.encoder_layers:
        below = g.input("encoder_hidden", ["T", 1, architecture.encoder_size])
    else:
        features = g.input("features", ["F", architecture.mel_bins])
        below = stacked_frames(g, features, "features.mean", "features.scale")
    encoder_hidden, encoder = _layers(g, below, "encoder", beneath.encoder_layers, traced=by_encoder)
    encoder_rows = g.squeeze(encoder_hidden, 1)
    frames = g.op("Gemm", encoder_rows, "joiner.encoder.weight", "joiner.encoder.bias", transB=1)

    count, previous = g.size(tokens, 0), started(g, tokens)
    predictor: list[Trace] = []
    if beneath.predictor:
        predictor_hidden = g.input("predictor_hidden", ["S", "N", architecture.predictor_size])
    else:
        embedded = g.op("Gather", "predictor.embedding", previous, axis=0)
        predictor_hidden, predictor = _layers(g, embedded, "predictor", traced=by_predictor)
    predictor_rows = g.reshape(predictor_hidden, -1, architecture.predictor_size)
    representatives, prefix_of = distinct_prefixes(g, tokens, lengths)
    hidden_prefixes = g.op("Gather", predictor_rows, representatives, axis=0)
    prefixes = g.op("Gemm", hidden_prefixes, "joiner.predictor.weight", transB=1)

    labels = g.reshape(g.concat(g.transpose(tokens), g.expand(g.integer(0), 1, count), axis=0), -1)
    joint = Joint(g, frames, prefixes, prefix_of, labels, OUTPUT, OUTPUT_BIAS)
    cells = g.shape(-1, g.size(previous, 0), count)
    blank, label = (g.cast(g.op("Reshape", edge, cells), DOUBLE) for edge in joint.log_probabilities())
    likelihoods, by_blank, by_label = lattice(g, blank, label, lengths)
    g.output("negative_log_likelihoods", g.cast(likelihoods, FLOAT), ["N"])

    # The loss' derivative by each NLL.
    posterior = g.op("Softmax", g.op("Neg", likelihoods), axis=0)
    costs = g.cast(costs, DOUBLE)
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
        d_prefixes = gradients["prefixes"]
        gradients |= matrix_gradients(g, "joiner.predictor.weight", d_prefixes, hidden_prefixes, factors=factors)
        # Equal prefixes are equal functions of the parameters, so the first of them may answer for all.
        nothing = g.expand(g.single(0.0), g.size(predictor_rows, 0), architecture.predictor_size)
        d_predictor = g.matmul(d_prefixes, "joiner.predictor.weight")
        d_predictor = g.op("ScatterND", nothing, g.unsqueeze(representatives, 1), d_predictor)
        d_predictor = g.reshape(d_predictor, -1, count, architecture.predictor_size)
        found, d_embedded = _stack_gradients(g, predictor, d_predictor, "predictor", factors=factors)
        gradients |= found
        gradients["predictor.embedding"] = g.op(
            "ScatterND",
            g.expand(g.single(0.0), architecture.pieces, architecture.embedding_size),
            g.reshape(previous, -1, 1),
            g.reshape(d_embedded, -1, architecture.embedding_size),
            reduction="add",
        )
    if by_encoder:
        d_frames = gradients["frames"]
        gradients |= matrix_gradients(g, "joiner.encoder.weight", d_frames, encoder_rows, factors=factors)
        gradients["joiner.encoder.bias"] = g.sum(d_frames, 0)
        d_encoder = g.reshape(g.matmul(d_frames, "joiner.encoder.weight"), -1, 1, architecture.encoder_size)
        gradients |= _stack_gradients(g, encoder, d_encoder, "encoder", beneath.encoder_layers, factors=factors)[0]

    for name in shapes:
        if name in wanted:
            for each in factor_names(name) if factors else (name,):
                g.output(f"gradient.{each}", gradients[each], given[each])
    return g.finish("training")


def _layers(g: GraphBuilder, x: Value, name: str, first: int = 0, *, traced: bool) -> tuple[Value, list[Trace]]:
    """A stack's layers from ``first`` up, from a zero state: its output [steps, B, size], and, where they are to be
    walked back, each layer's trace."""
    layers = {"encoder": g.architecture.encoder_layers, "predictor": g.architecture.predictor_layers}[name]
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
        layer = f"{name}.{place}"
        found = lstm_gradients(g, trace, dy, [f"{layer}.{part}" for part in "WRB"], _size(g, name))
        gradients |= matrix_gradients(g, f"{layer}.W", found.gates, found.inputs, factors=factors)
        gradients |= matrix_gradients(g, f"{layer}.R", found.gates, found.before, factors=factors)
        gradients[f"{layer}.B"] = g.sum(found.gates, 0)
        dy = found.x
    return gradients, dy


def _size(g: GraphBuilder, name: str) -> int:
    return g.architecture.encoder_size if name == "encoder" else g.architecture.predictor_size
