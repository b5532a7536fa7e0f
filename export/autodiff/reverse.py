"""From a graph and what is wanted to the graph of the gradients."""

from collections.abc import Collection, Sequence

import numpy as np
from onnx import helper

from device_sdk.bundle.architecture import factor_names
from device_sdk.runtimes.windows import COTANGENT, GRADIENT
from export.autodiff.graph import FixedGraph, NotDifferentiable, attributes, place
from export.autodiff.rules import FORWARD, RULES
from export.autodiff.tape import Tape
from export.graphs.builder import GraphBuilder


def forward(graph: FixedGraph, builder: GraphBuilder) -> GraphBuilder:
    """The graph itself, its variables as inputs: whoever gives them need not build a session for every step."""
    written = _begin(graph, builder, ())
    for node in graph.nodes:
        written.append(node)
    for name in graph.outputs:
        written.keep(name, graph.shapes[name], helper.np_dtype_to_tensor_dtype(graph.kinds[name]))
    return written


def differentiate(
    graph: FixedGraph,
    wanted: Sequence[str],
    seeds: Sequence[str],
    builder: GraphBuilder,
    factors: Collection[str] = (),
) -> GraphBuilder:
    """wanted: variables or inputs, those of floating types. seeds: outputs whose cotangents come in. factors: wanted
    matrices [A, B] whose gradients are given by factors beside them, ``NAME.up`` [A, r] and ``NAME.down`` [r, B],
    inputs, too; the matrix that comes in holds their product already. A wanted value that no seed depends on gets no
    output. Raises :class:`NotDifferentiable` that names the operator."""
    written = _begin(graph, builder, seeds)
    pairs = {name: factor_names(name) for name in wanted if name in factors}
    for name, (up, down) in pairs.items():
        rows, columns = graph.shapes[name]
        written.input(up, (rows, "r"))
        written.input(down, ("r", columns))
    tape = Tape(written, graph, _active(graph, wanted, seeds), pairs)
    for node in graph.nodes:
        replaced = FORWARD.get(node.op_type)
        if replaced is not None and any(map(tape.needs, node.output)):
            replaced(tape, node, attributes(node))
        else:
            written.append(node)
    for name in seeds:
        tape.give(name, f"{COTANGENT}{name}")
    for node in reversed(graph.nodes):
        if not any(map(tape.came, node.output)):
            continue
        given = [tape.take(name) if name else None for name in node.output]
        if not any(map(tape.needs, node.input)):
            continue
        rule = RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if rule is None:
            raise NotDifferentiable(f"{place(node)}: no derivative is known of this operator")
        rule(tape, node, given, attributes(node))
    for name in wanted:
        _give(tape, name, pairs.get(name), graph.shapes[name])
    return written


def _give(tape: Tape, name: str, factors: tuple[str, str] | None, shape: tuple[int, ...]) -> None:
    """The outputs of a wanted value."""
    g, cotangent = tape.g, tape.take(name)
    if factors is None:
        if cotangent is not None:
            g.output(f"{GRADIENT}{name}", cotangent, shape)
        return
    up, down = factors
    if cotangent is not None:  # of what was not a plain product
        tape.give(up, g.op("Gemm", cotangent, down, transB=1))
        tape.give(down, g.op("Gemm", up, cotangent, transA=1))
    for each, sizes in ((up, (shape[0], "r")), (down, ("r", shape[1]))):
        found = tape.take(each)
        if found is not None:
            g.output(f"{GRADIENT}{each}", found, sizes)


def _begin(graph: FixedGraph, g: GraphBuilder, seeds: Sequence[str]) -> GraphBuilder:
    for name in (*graph.inputs, *graph.variables):
        g.input(name, graph.shapes[name], helper.np_dtype_to_tensor_dtype(graph.kinds[name]))
    for name in seeds:
        g.input(f"{COTANGENT}{name}", graph.shapes[name])
    for name, value in graph.constants.items():
        g.hold(name, value)
    return g


def _active(graph: FixedGraph, wanted: Sequence[str], seeds: Sequence[str]) -> set[str]:
    """What wanted values move and what moves a seed."""
    moved, useful = set(wanted), set(seeds)
    for node in graph.nodes:
        if moved.intersection(node.input):
            moved.update(name for name in node.output if name and graph.kinds[name].kind == "f")
    for node in reversed(graph.nodes):
        if useful.intersection(node.output):
            useful.update(name for name in node.input if name in moved)
            for name in moved.intersection(node.output):
                if graph.kinds[name] != np.float32:
                    raise NotDifferentiable(f"{place(node)}: gives {graph.kinds[name]}; expected float32")
    return moved & useful
