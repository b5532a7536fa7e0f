"""A graph of known sizes in torch, operator by operator, so that autograd differentiates it: the peer of graphs that
learn, on whatever network a bundle brings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor
from torch.nn import functional

from export.autodiff.graph import FixedGraph, attributes

Operator = Callable[[list[Tensor | None], Mapping[str, Any], onnx.NodeProto], Any]


class EagerGraph:
    """Owns the constants as tensors."""

    def __init__(self, graph: FixedGraph) -> None:
        """Raises ValueError for an operator that is not known here."""
        unknown = {node.op_type for node in graph.nodes} - OPERATORS.keys()
        if unknown:
            raise ValueError(f"no torch operator is known of {sorted(unknown)}")
        self._nodes = [(OPERATORS[node.op_type], node, attributes(node)) for node in graph.nodes]
        self._constants = {name: torch.from_numpy(np.array(value)) for name, value in graph.constants.items()}
        self._outputs = graph.outputs

    def __call__(
        self, given: Mapping[str, Tensor], factors: Mapping[str, tuple[Tensor, Tensor]] | None = None
    ) -> list[Tensor]:
        """The outputs, in their order. given: inputs and variables, by name. factors: beside matrices, (up, down),
        whose product is not in them."""
        values: dict[str, Tensor] = {**self._constants, **given}
        beside = factors or {}
        for operator, node, known in self._nodes:
            found = operator([values[name] if name else None for name in node.input], known, node)
            if node.op_type == "MatMul" and node.input[1] in beside:
                up, down = beside[node.input[1]]
                found = found + values[node.input[0]] @ up @ down
            for name, value in zip(node.output, found if isinstance(found, tuple) else (found,), strict=False):
                values[name] = value
        return [values[name] for name in self._outputs]


def _plain(function: Callable[..., Tensor]) -> Operator:
    return lambda x, _, __: function(*x)


def _ints(value: Tensor | None) -> list[int]:
    return [] if value is None else [int(each) for each in value.reshape(-1).tolist()]


def _axes(x: Sequence[Tensor | None], known: Mapping[str, Any], index: int = 1) -> list[int]:
    return list(known["axes"]) if "axes" in known else _ints(x[index] if len(x) > index else None)


def _reduced(function: Callable[..., Tensor]) -> Operator:
    def run(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
        assert x[0] is not None
        axes = _axes(x, known) or list(range(x[0].ndim))
        return function(x[0], axes, bool(known.get("keepdims", 1)))

    return run


def _slice(x: list[Tensor | None], _: Mapping[str, Any], __: onnx.NodeProto) -> Tensor:
    value, starts, ends, *rest = x
    assert value is not None
    bounds, reach = _ints(starts), _ints(ends)
    axes = _ints(rest[0]) if rest else list(range(len(bounds)))
    steps = _ints(rest[1]) if len(rest) > 1 else [1] * len(axes)
    for axis, start, end, step in zip(axes, bounds, reach, steps, strict=True):
        size = value.shape[axis]
        if step > 0:
            axis %= value.ndim
            value = value[(slice(None),) * axis + (slice(start, end, step),)]
        else:
            stop = None if end < -size else end
            value = value.index_select(axis, torch.tensor(list(range(size))[slice(start, stop, step)]))
    return value


def _pad(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    value, pads = x[0], _ints(x[1])
    assert value is not None
    fill = float(x[2]) if len(x) > 2 and x[2] is not None else 0.0
    half = len(pads) // 2
    order = [each for axis in reversed(range(half)) for each in (pads[axis], pads[half + axis])]
    return functional.pad(value, order, value=fill)


def _conv(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    value, weight, *bias = x
    assert value is not None and weight is not None
    space = weight.ndim - 2
    pads, ones = known.get("pads", [0] * 2 * space), [1] * space
    if any(pads):
        order = [each for axis in reversed(range(space)) for each in (pads[axis], pads[space + axis])]
        value = functional.pad(value, order)
    run = functional.conv1d if space == 1 else functional.conv2d
    strides, dilations = known.get("strides", ones), known.get("dilations", ones)
    return run(value, weight, bias[0] if bias else None, strides, 0, dilations, known.get("group", 1))


def _gemm(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    a, b, *bias = x
    assert a is not None and b is not None
    y = (a.T if known.get("transA") else a) @ (b.T if known.get("transB") else b) * known.get("alpha", 1.0)
    return y if not bias or bias[0] is None else y + bias[0] * known.get("beta", 1.0)


def _gather(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    value, index = x
    assert value is not None and index is not None
    axis = known.get("axis", 0) % value.ndim
    places = torch.where(index < 0, index + value.shape[axis], index)
    found = value.index_select(axis, places.reshape(-1))
    return found.reshape(*value.shape[:axis], *index.shape, *value.shape[axis + 1 :])


def _lstm(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> tuple[Tensor, ...]:
    value, w, r, b, _lengths, h, c = [*x, None, None, None][:7]
    assert value is not None and w is not None and r is not None and b is not None
    size = known["hidden_size"]

    def torchs(rows: Tensor) -> Tensor:  # gates i, o, f, c to i, f, c, o
        i, o, f, g = rows.reshape(4, size, -1).unbind()
        return torch.cat([i, f, g, o])

    bias = b[0].reshape(2, 4 * size).sum(0)
    weights = [torchs(w[0]), torchs(r[0]), torchs(bias).reshape(-1), torch.zeros(4 * size)]
    zero = value.new_zeros(1, value.shape[1], size)
    state = (zero if h is None else h, zero if c is None else c)
    y, h, c = torch._VF.lstm(value, state, weights, True, 1, 0.0, False, False, False)
    return y.unsqueeze(1), h, c


def _layer_norm(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    value, scale, *bias = x
    assert value is not None
    shape = value.shape[known.get("axis", -1) % value.ndim :]
    return functional.layer_norm(value, shape, scale, bias[0] if bias else None, known.get("epsilon", 1e-5))


def _split(x: list[Tensor | None], known: Mapping[str, Any], node: onnx.NodeProto) -> tuple[Tensor, ...]:
    value, axis = x[0], known.get("axis", 0)
    assert value is not None
    sizes = _ints(x[1]) if len(x) > 1 else []
    return torch.split(value, sizes, axis) if sizes else value.chunk(len(node.output), axis)


def _reshape(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    value, sizes = x[0], _ints(x[1])
    assert value is not None
    return value.reshape([size or value.shape[axis] for axis, size in enumerate(sizes)])


def _squeeze(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    assert x[0] is not None
    axes = [axis % x[0].ndim for axis in _axes(x, known)] or [i for i, size in enumerate(x[0].shape) if size == 1]
    return x[0].reshape([size for axis, size in enumerate(x[0].shape) if axis not in axes])


def _unsqueeze(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    value, axes = x[0], _axes(x, known)
    assert value is not None
    for axis in sorted(axis % (value.ndim + len(axes)) for axis in axes):
        value = value.unsqueeze(axis)
    return value


def _cast(x: list[Tensor | None], known: Mapping[str, Any], _: onnx.NodeProto) -> Tensor:
    assert x[0] is not None
    kind = helper.tensor_dtype_to_np_dtype(known["to"])
    return x[0].to(torch.from_numpy(np.zeros(1, kind)).dtype)


def _along(function: Callable[..., Tensor]) -> Operator:
    return lambda x, known, _: function(x[0], known.get("axis", -1))


OPERATORS: Mapping[str, Operator] = {
    **{name: _plain(getattr(torch, name.lower())) for name in ("Add", "Sub", "Mul", "Div", "MatMul", "Exp", "Log")},
    **{name: _plain(getattr(torch, name.lower())) for name in ("Neg", "Abs", "Sqrt", "Tanh", "Sigmoid", "Relu")},
    **{name: _plain(getattr(torch, name.lower())) for name in ("Reciprocal", "Sin", "Cos", "Erf", "Where", "Less")},
    **{name: _plain(getattr(torch, name.lower())) for name in ("Greater", "Pow", "Sign")},
    "Equal": _plain(torch.eq),
    "Or": _plain(torch.logical_or),
    "And": _plain(torch.logical_and),
    "Not": _plain(torch.logical_not),
    "LessOrEqual": _plain(torch.le),
    "GreaterOrEqual": _plain(torch.ge),
    "Max": _plain(torch.maximum),
    "Min": _plain(torch.minimum),
    "Softplus": _plain(functional.softplus),
    "Identity": lambda x, _, __: x[0],
    "Clip": lambda x, _, __: torch.clamp(x[0], *[*x[1:], None, None][:2]),  # type: ignore[arg-type]
    "Cast": _cast,
    "Softmax": _along(torch.softmax),
    "LogSoftmax": _along(torch.log_softmax),
    "ReduceSum": _reduced(lambda x, axes, keep: x.sum(axes, keep)),
    "ReduceMean": _reduced(lambda x, axes, keep: x.mean(axes, keep)),
    "ReduceMax": _reduced(lambda x, axes, keep: x.amax(axes, keep)),
    "Concat": lambda x, known, _: torch.cat(x, known["axis"]),  # type: ignore[arg-type]
    "Transpose": lambda x, known, _: x[0].permute(*known["perm"]),  # type: ignore[union-attr]
    "Expand": lambda x, _, __: torch.broadcast_to(x[0], torch.broadcast_shapes(x[0].shape, _ints(x[1]))),  # type: ignore
    "GatherElements": lambda x, known, _: torch.gather(x[0], known.get("axis", 0), x[1]),  # type: ignore[arg-type]
    "Gather": _gather,
    "Slice": _slice,
    "Split": _split,
    "Reshape": _reshape,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Pad": _pad,
    "Conv": _conv,
    "Gemm": _gemm,
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
}
