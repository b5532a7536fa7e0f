"""A graph with all its sizes known: one run tells the shape of every value, and whatever depends on no input and no
weight is a constant."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, version_converter

from device_sdk.errors import BundleError
from device_sdk.runtimes.onnxruntime import open_session, run
from export.graphs.builder import OPSET

SIZES = {"Shape", "Size"}
"""Operators whose output is known without a value of their input."""
_RANDOM = "Random", "Bernoulli", "Multinomial"
_LARGEST_CONSTANT = 1 << 26  # bytes that folding may make of nothing

Array = NDArray[np.generic]


class NotDifferentiable(BundleError):
    """Something without a derivative lies between what is wanted and what is seeded."""


@dataclass(frozen=True, slots=True)
class FixedGraph:
    """nodes: in an order in which they can run, without those that only make constants. inputs: what comes with each
    run; variables: the weights, which may come with each run, too. constants: by name. shapes, kinds: of every value
    that a node takes or gives."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...]
    variables: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    shapes: Mapping[str, tuple[int, ...]]
    kinds: Mapping[str, np.dtype[Any]]


def prepare(model: onnx.ModelProto, variables: Collection[str], source: str = "graph") -> FixedGraph:
    """model: whose inputs have fixed sizes. variables: initializers that are no constants, since they will change.
    source: for messages. Raises :class:`NotDifferentiable` for a graph that does not run, and for a branch that is
    taken or not as an input says."""
    model = _at_opset(model, source)
    while True:
        known, values = _fixed(model.graph, variables), _observed(model, source)
        if not _branches_taken(model.graph, known, values, source):
            break
    graph = model.graph
    live = {each.name for each in graph.output}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if live.intersection(node.output) and not known.issuperset(filter(None, node.output)):
            nodes.append(node)
            live.update(filter(None, node.input))
    constants = {name: values[name] for name in live & known}
    for name, value in constants.items():
        if value.nbytes > _LARGEST_CONSTANT:
            raise NotDifferentiable(f"{source}: constant {name!r} takes {value.nbytes} bytes; expected a smaller graph")
    given = tuple(each.name for each in graph.input if each.name not in {held.name for held in graph.initializer})
    return FixedGraph(
        tuple(reversed(nodes)),
        given,
        tuple(name for name in variables if name in live),
        tuple(each.name for each in graph.output),
        constants,
        {name: value.shape for name, value in values.items()},
        {name: value.dtype for name, value in values.items()},
    )


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def _at_opset(model: onnx.ModelProto, source: str) -> onnx.ModelProto:
    """A copy with operators as rules know them."""
    version = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 0)
    if version == OPSET:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy
    try:
        converted: onnx.ModelProto = version_converter.convert_version(model, OPSET)
    except Exception as error:  # of onnx, which raises what its C++ does
        raise NotDifferentiable(f"{source}: opset {version} cannot become {OPSET} ({str(error)[:200]})") from error
    return converted


def _fixed(graph: onnx.GraphProto, variables: Collection[str]) -> set[str]:
    """Names of values that are the same in every run."""
    known = {each.name for each in graph.initializer}.difference(variables)
    for node in graph.node:
        if node.op_type.startswith(_RANDOM):
            continue
        if node.op_type in SIZES or (known.issuperset(filter(None, node.input)) and _reads(node) <= known):
            known.update(filter(None, node.output))
    return known


def _reads(node: onnx.NodeProto) -> set[str]:
    """What the branches of a node take from outside."""
    names: set[str] = set()
    for each in node.attribute:
        if each.type == onnx.AttributeProto.GRAPH:
            made = {held.name for held in each.g.initializer} | {given.name for given in each.g.input}
            for inner in each.g.node:
                names |= (set(filter(None, inner.input)) | _reads(inner)) - made
                made.update(inner.output)
    return names


def _observed(model: onnx.ModelProto, source: str) -> dict[str, Array]:
    """Every value of one run over zeros, by name."""
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    feeds: dict[str, Array] = {}
    for each in model.graph.input:
        if each.name not in held:
            kind = each.type.tensor_type
            sizes = [size.dim_value for size in kind.shape.dim]
            if not all(size > 0 for size in sizes):
                raise NotDifferentiable(f"{source}: input {each.name!r} has free sizes; expected fixed ones")
            feeds[each.name] = np.zeros(sizes, helper.tensor_dtype_to_np_dtype(kind.elem_type))
    names = list(dict.fromkeys(name for node in model.graph.node for name in node.output if name))
    del probe.graph.output[:], probe.graph.value_info[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = open_session(probe.SerializeToString(), source)
    found = dict(zip(names, map(np.asarray, run(session, feeds, source)), strict=True))
    return {**held, **feeds, **found}


def _branches_taken(graph: onnx.GraphProto, known: Collection[str], values: Mapping[str, Array], source: str) -> bool:
    """Puts the branch in the place of every If that is decided; whether there was one."""
    kept: list[onnx.NodeProto] = []
    decided = False
    for node in graph.node:
        if node.op_type != "If":
            kept.append(node)
            continue
        if node.input[0] not in known:
            raise NotDifferentiable(f"{source}: {place(node)} branches by what comes in; expected one that is decided")
        decided = True
        branch = attributes(node)["then_branch" if values[node.input[0]].item() else "else_branch"]
        kept += _inlined(node, branch, graph)
    del graph.node[:]
    graph.node.extend(kept)
    return decided


def _inlined(node: onnx.NodeProto, branch: onnx.GraphProto, graph: onnx.GraphProto) -> Iterable[onnx.NodeProto]:
    prefix = f"{node.output[0]}/branch/"
    local = {name for inner in branch.node for name in inner.output} | {held.name for held in branch.initializer}
    for tensor in branch.initializer:
        moved = TensorProto()
        moved.CopyFrom(tensor)
        moved.name = prefix + tensor.name
        graph.initializer.append(moved)
    for inner in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        for names in (copy.input, copy.output):
            names[:] = [prefix + name if name in local else name for name in names]
        yield copy
    for outer, given in zip(node.output, branch.output, strict=True):
        yield helper.make_node("Identity", [prefix + given.name if given.name in local else given.name], [outer])


def place(node: onnx.NodeProto) -> str:
    """A node, for messages."""
    return f"{node.op_type} {node.name or (node.output[0] if node.output else '')!r}"
