"""What a backward pass writes down: cotangents as they come, and nodes that make them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from export.autodiff.graph import FixedGraph, NotDifferentiable, place
from export.graphs.builder import GraphBuilder, Value
from export.graphs.lstm import Trace


@dataclass(frozen=True, slots=True)
class _Part:
    """A cotangent that is not zero in [start, stop) of an axis only."""

    value: Value
    axis: int
    start: int
    stop: int


class Tape:
    """Of one backward pass. A cotangent is the derivative of the seeds' weighted sum by a value, of the value's shape.

    g: where nodes go. factors: matrices whose gradients are wanted by factors of low rank, name -> (up, down)."""

    def __init__(
        self, g: GraphBuilder, graph: FixedGraph, active: Collection[str], factors: Mapping[str, tuple[Value, Value]]
    ) -> None:
        """active: values that a wanted one moves and that move a seed."""
        self.g, self._graph, self.factors = g, graph, factors
        self._active = {*active, *(name for pair in factors.values() for name in pair)}
        self._cotangents: dict[Value, list[Value | _Part]] = {}
        self._made: dict[tuple[Any, ...], Value] = {}
        self.traces: dict[Value, tuple[Trace, Sequence[Value]]] = {}

    def shape(self, name: Value) -> tuple[int, ...]:
        return self._graph.shapes[name]

    def rank(self, name: Value) -> int:
        return len(self.shape(name))

    def constant(self, name: Value) -> NDArray[np.generic] | None:
        return self._graph.constants.get(name)

    def whole_numbers(self, node: onnx.NodeProto, index: int) -> list[int] | None:
        """A constant input of integers; None where the node has no such input. Raises NotDifferentiable where it is no
        constant."""
        if len(node.input) <= index or not node.input[index]:
            return None
        value = self.constant(node.input[index])
        if value is None:
            raise NotDifferentiable(f"{place(node)}: input {index} changes from run to run; expected a constant")
        return [int(each) for each in value.reshape(-1)]

    def needs(self, name: Value) -> bool:
        return name in self._active

    # Cotangents.

    def give(self, name: Value, cotangent: Value) -> None:
        """Add to a value's cotangent."""
        if self.needs(name):
            self._cotangents.setdefault(name, []).append(cotangent)

    def give_part(self, name: Value, cotangent: Value, axis: int, start: int, stop: int) -> None:
        """The same of one stretch of an axis, zero elsewhere."""
        if self.needs(name):
            self._cotangents.setdefault(name, []).append(_Part(cotangent, axis, start, stop))

    def came(self, name: Value) -> bool:
        return name in self._cotangents

    def take(self, name: Value) -> Value | None:
        """The sum of all that came; None where nothing did."""
        came = self._cotangents.pop(name, [])
        whole = [each for each in came if not isinstance(each, _Part)]
        parts = sorted((each for each in came if isinstance(each, _Part)), key=lambda part: (part.axis, part.start))
        while parts:
            row: list[_Part] = []
            for part in parts:  # side by side along one axis: one concatenation in place of several sums
                if not row or (part.axis == row[0].axis and part.start >= row[-1].stop):
                    row.append(part)
            parts = [part for part in parts if part not in row]
            whole.append(self._joined(self.shape(name), row))
        if len(whole) < 2:
            return whole[0] if whole else None
        return self.g.op("Sum", *whole)

    def _joined(self, shape: tuple[int, ...], row: Sequence[_Part]) -> Value:
        axis, at, pieces = row[0].axis, 0, list[Value]()
        for start, stop, value in [*((part.start, part.stop, part.value) for part in row), (shape[axis], 0, "")]:
            if start > at:
                gap = (*shape[:axis], start - at, *shape[axis + 1 :])
                pieces.append(self.zeros(gap))
            if value:
                pieces.append(value)
            at = stop
        return self.g.concat(*pieces, axis=axis)

    # Nodes that many rules want.

    def zeros(self, shape: Sequence[int]) -> Value:
        """Made at run time: as constants they would take up the file."""
        return self._once("zeros", tuple(shape), lambda: self.g.expand(self.g.single(0.0), *shape))

    def transposed(self, value: Value, *order: int) -> Value:
        return self._once("transposed", (value, order), lambda: self.g.transpose(value, *order))

    def _once(self, kind: str, key: tuple[Any, ...], make: Any) -> Value:
        if (kind, *key) not in self._made:
            self._made[kind, *key] = make()
        return self._made[kind, *key]

    def reshaped(self, cotangent: Value, name: Value) -> Value:
        """To the shape of a value."""
        return self.g.op("Reshape", cotangent, self.g.integers(*self.shape(name)))

    def summed(self, value: Value, axes: Sequence[int], *, keep: bool = False) -> Value:
        return self.g.sum(value, *axes, keep=keep) if axes else value

    def unbroadcast(self, cotangent: Value, name: Value, shape: Sequence[int]) -> Value:
        """A cotangent of ``shape`` summed over what the value was repeated along to have it."""
        own = self.shape(name)
        lead = len(shape) - len(own)
        repeated = [axis for axis, size in enumerate(own, lead) if size == 1 != shape[axis]]
        if not repeated:
            return self.summed(cotangent, range(lead))
        cotangent = self.summed(cotangent, [*range(lead), *repeated], keep=True)
        return self.reshaped(cotangent, name) if lead else cotangent

    def flattened(self, value: Value, shape: Sequence[int]) -> Value:
        """All axes but the last as one."""
        return value if len(shape) == 2 else self.g.reshape(value, prod(shape[:-1]), shape[-1])
