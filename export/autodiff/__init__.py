"""Reverse-mode differentiation of inference graphs into further ONNX graphs, which plain onnxruntime runs.

    graph = prepare(model, weights)
    backward = differentiate(graph, [*weights, "cache"], ["encoded", "next.cache"]).finish("backward")

The backward graph takes the graph's own inputs, the weights by their names and ``cotangent.OUTPUT`` of every seed; it
gives ``gradient.NAME`` of every wanted value. Sizes are fixed, as those of a streaming encoder's window are: whatever
is made of sizes alone was worked out beforehand, and what no gradient needs is left out."""

from export.autodiff.graph import FixedGraph, NotDifferentiable, prepare
from export.autodiff.reverse import differentiate, forward

__all__ = ["FixedGraph", "NotDifferentiable", "differentiate", "forward", "prepare"]
