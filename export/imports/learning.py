"""The graphs that an imported encoder learns with: itself with its weights as inputs, and its gradients by subset."""

import onnx

from device_sdk.bundle.architecture import FORWARD_FILE, backward_file, trainable, training_file
from device_sdk.bundle.streaming import StreamingArchitecture, subsets_of
from export.autodiff import NotDifferentiable, differentiate, forward, prepare
from export.graphs.builder import GraphBuilder
from export.graphs.training import training
from export.imports.encoder import Encoder

_PREFIX = "d/"


def learning_graphs(encoder: Encoder, architecture: StreamingArchitecture, source: str) -> dict[str, bytes]:
    """By the names of a bundle's files, but those of subset ``output``, which leaves the encoder alone. Raises
    :class:`export.autodiff.NotDifferentiable` that names the operator without a derivative. source: for messages."""
    names = encoder.names()
    graph = prepare(_renamed(encoder.graph, names), list(names.values()), source)

    def builder() -> GraphBuilder:
        return GraphBuilder(architecture, prefix=_PREFIX)

    graphs = {FORWARD_FILE: forward(graph, builder()).finish("forward")}
    passed = [state.name for state in architecture.states if state.kind == "float32"]
    for subset in subsets_of(architecture):
        if subset == "output":
            continue
        moved = [name for name in trainable(architecture, subset) if name.startswith("encoder.")]
        seeds = ["encoded", *(f"next.{name}" for name in passed)]
        factors = moved if subset == "adapters" else []
        try:
            backward = differentiate(graph, [*moved, *passed], seeds, builder(), factors)
        except NotDifferentiable as error:
            raise NotDifferentiable(f"{source}: {error}") from error
        graphs[backward_file(subset)] = backward.finish("backward")
        graphs[training_file(subset)] = training(architecture, subset)
    return graphs


def _renamed(model: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """A copy with the weights under the names that bundles give them."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in copy.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    return copy
