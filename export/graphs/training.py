"""The training graph: one graph for every objective that weighs the hypotheses of one utterance.

    loss = sum_i w_i NLL_i + c E[M],    E[M] = sum_i p_i M_i,    p = softmax(-NLL)        (paper 001, eq. 1)

    dE[M]/dNLL_i = p_i (E[M] - M_i)

Gradients are written out by hand, so plain onnxruntime trains. The N hypotheses share one encoder pass.
"""

from __future__ import annotations

from collections.abc import Collection

from device_sdk.bundle.architecture import Architecture
from device_sdk.errors import ConfigurationError
from export.graphs.builder import DOUBLE, FLOAT, INT64, GraphBuilder, Value
from export.graphs.joint import Joint
from export.graphs.lattice import lattice
from export.graphs.lstm import lstm, lstm_gradients
from export.graphs.prefixes import distinct_prefixes
from export.graphs.streaming import stacked_frames

__all__ = ["training"]


def training(architecture: Architecture, trainable: Collection[str] | None = None) -> bytes:
    """F: frames; M: mel bins; N: hypotheses; U: longest hypothesis.

    Inputs: features [F, M] float32 raw log-mel, F >= K; tokens [N, U] int64, padded with 0; lengths [N] int64;
    weights [N], costs [N], cost_scale [] float32; every parameter and constant by its name, float32.
    Outputs: negative_log_likelihoods [N], expected_cost [], ``gradient.NAME`` for every trainable parameter, float32.

    trainable: parameters to return gradients for; ``None`` is all. Nothing below the lowest of them is walked back.
    Raises :class:`ConfigurationError` for an unknown or empty choice.
    """
    shapes = architecture.parameter_shapes()
    wanted = frozenset(shapes if trainable is None else trainable)
    if unknown := sorted(wanted - shapes.keys()):
        raise ConfigurationError(
            f"trainable: found unknown parameter {unknown[0]!r}, expected names of the architecture"
        )
    if not wanted:
        raise ConfigurationError("trainable: found no parameter, expected at least one")

    g = GraphBuilder(architecture)
    features = g.input("features", ["F", architecture.mel_bins])
    tokens = g.input("tokens", ["N", "U"], INT64)
    lengths = g.input("lengths", ["N"], INT64)
    weights = g.input("weights", ["N"])
    costs = g.input("costs", ["N"])
    cost_scale = g.input("cost_scale", [])
    for name, shape in (shapes | architecture.constant_shapes()).items():
        g.input(name, shape)

    # Forwards: networks, joint, lattice.
    size = architecture.encoder_size
    heard = _layers(g, stacked_frames(g, features, "features.mean", "features.scale"), "encoder")
    frames = g.op("Gemm", g.squeeze(heard[-1], 1), "joiner.encoder.weight", "joiner.encoder.bias", transB=1)

    count = g.size(tokens, 0)
    blanks = g.expand(g.integer(0), 1, count)
    by_step = g.transpose(tokens)
    previous = g.concat(blanks, by_step, axis=0)
    said = _layers(g, g.op("Gather", "predictor.embedding", previous, axis=0), "predictor")
    said_rows = g.reshape(said[-1], -1, architecture.predictor_size)
    representatives, prefix_of = distinct_prefixes(g, tokens, lengths)
    said_prefixes = g.op("Gather", said_rows, representatives, axis=0)
    prefixes = g.op("Gemm", said_prefixes, "joiner.predictor.weight", transB=1)

    labels = g.reshape(g.concat(by_step, blanks, axis=0), -1)
    joint = Joint(g, frames, prefixes, prefix_of, labels, "joiner.output.weight", "joiner.output.bias")
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

    # Backwards: an edge's occupancy is minus the NLL's derivative by its log-probability.
    def flatten(occupancy: Value) -> Value:
        return g.reshape(g.cast(g.multiply(occupancy, d_likelihoods), FLOAT), -1, g.size(labels, 0))

    d_joint = joint.gradients(flatten(by_blank), flatten(by_label))
    gradients = {"joiner.output.weight": d_joint["weight"], "joiner.output.bias": d_joint["bias"]}

    gradients["joiner.predictor.weight"] = g.op("Gemm", d_joint["prefixes"], said_prefixes, transA=1)
    lowest = 0 if "predictor.embedding" in wanted else _lowest(architecture.predictor_layers, wanted, "predictor")
    if lowest is not None:
        # Equal prefixes are equal functions of the parameters, so the first of them may answer for all.
        d_prefixes = g.matmul(d_joint["prefixes"], "joiner.predictor.weight")
        nothing = g.expand(g.single(0.0), g.size(said_rows, 0), architecture.predictor_size)
        d_said = g.op("ScatterND", nothing, g.unsqueeze(representatives, 1), d_prefixes)
        d_said = g.reshape(d_said, -1, count, architecture.predictor_size)
        gradients |= _stack_gradients(g, said, d_said, "predictor", lowest, wanted)

    heard_rows = g.squeeze(heard[-1], 1)
    gradients["joiner.encoder.weight"] = g.op("Gemm", d_joint["frames"], heard_rows, transA=1)
    gradients["joiner.encoder.bias"] = g.sum(d_joint["frames"], 0)
    lowest = _lowest(architecture.encoder_layers, wanted, "encoder")
    if lowest is not None:
        d_heard = g.reshape(g.matmul(d_joint["frames"], "joiner.encoder.weight"), -1, 1, size)
        gradients |= _stack_gradients(g, heard, d_heard, "encoder", lowest, wanted)

    if "predictor.embedding" in wanted:
        width = architecture.embedding_size
        empty = g.expand(g.single(0.0), architecture.pieces, width)
        gradients["predictor.embedding"] = g.op(
            "ScatterND",
            empty,
            g.reshape(previous, -1, 1),
            g.reshape(gradients.pop("predictor.x"), -1, width),
            reduction="add",
        )
    for name, shape in shapes.items():
        if name in wanted:
            g.output(f"gradient.{name}", gradients[name], shape)
    return g.finish("training")


def _layers(g: GraphBuilder, x: Value, name: str) -> list[Value]:
    """A stack of layers from a zero state: its input, then every layer's output, each [steps, B, size]."""
    layers = {"encoder": g.architecture.encoder_layers, "predictor": g.architecture.predictor_layers}[name]
    size = {"encoder": g.architecture.encoder_size, "predictor": g.architecture.predictor_size}[name]
    values = [x]
    for layer in range(layers):
        values.append(lstm(g, values[-1], [f"{name}.{layer}.{part}" for part in "WRB"], size)[0])
    return values


def _lowest(layers: int, wanted: frozenset[str], name: str) -> int | None:
    """The lowest layer with a trainable parameter, None where there is none."""
    return next((layer for layer in range(layers) if _parts(wanted, f"{name}.{layer}")), None)


def _parts(wanted: frozenset[str], layer: str) -> frozenset[str]:
    return frozenset(part for part in "WRB" if f"{layer}.{part}" in wanted)


def _stack_gradients(
    g: GraphBuilder, values: list[Value], dy: Value, name: str, lowest: int, wanted: frozenset[str]
) -> dict[str, Value]:
    """Gradients of a stack from its top layer down to ``lowest``; ``NAME.x`` is that of the stack's own input."""
    gradients: dict[str, Value] = {}
    for layer in reversed(range(lowest, len(values) - 1)):
        weights = [f"{name}.{layer}.{part}" for part in "WRB"]
        parts = _parts(wanted, f"{name}.{layer}")
        if layer > lowest or (name == "predictor" and "predictor.embedding" in wanted):
            parts |= {"x"}
        size = g.architecture.encoder_size if name == "encoder" else g.architecture.predictor_size
        found = lstm_gradients(g, values[layer], values[layer + 1], dy, weights, size, parts)
        dy = found.pop("x", "")
        gradients |= {f"{name}.{layer}.{part}": value for part, value in found.items()}
    return gradients | {f"{name}.x": dy}
