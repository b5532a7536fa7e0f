"""What each kind of layer gives a cohort: its output, clients' weights stacked or shared, and gradients as factors.

K: clients of a group; N: examples of each; R = K N rows, client after client; M: rows of a client once time is folded
in; I, O: sizes in and out. Every tensor that a layer reads has R as its leading size.

A weight's gradient of client k is the product of two tall matrices, sum over rows m of b[k, m] a[k, m]^T. So its norm
needs only the products of rows with rows, and a weighted sum over clients is one product of all rows: gradients of
single clients are never held (Goodfellow 2015; Li et al. 2021, Bu et al. 2022 for sequences and convolutions)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import ConfigurationError

BLOCK = 1 << 21
"""Values of single clients' gradients that are held at once where that is quicker than rows with rows."""

Forward = Callable[..., Any]


class Factors(Protocol):
    """The gradient of one parameter for K clients, not multiplied out."""

    def squares(self) -> Tensor:
        """Squared L2 norm of every client's gradient, [K]."""

    def total(self, scales: Tensor) -> Tensor:
        """Sum over clients of scale times gradient, in the parameter's shape. scales: [K]."""

    def move(self, weights: Tensor, scales: Tensor) -> Tensor:
        """Every client's weights [K, ...] plus scale times its gradient. weights: [K, ...], which are overwritten, or
        those that all share, in the parameter's shape. scales: [K]."""


class Product:
    """Owns what a weight's gradient is made of, what its layer took in and the gradients of what came out; and its norm
    once computed, with the gradients of single clients where they are few."""

    def __init__(self, inputs: Tensor, outputs: Tensor, shape: torch.Size) -> None:
        """inputs: [K, M, I]; outputs: [K, M, O], gradients with respect to the output; shape: the weight's, O I
        values."""
        self.inputs, self.outputs, self.shape = inputs, outputs, shape
        self.whole: Tensor | None = None

    @cached_property
    def _squares(self) -> Tensor:
        (clients, rows, width), depth = self.inputs.shape, self.outputs.shape[2]
        if rows * (width + depth) < width * depth:
            same = torch.bmm(self.outputs, self.outputs.transpose(1, 2))
            return (torch.bmm(self.inputs, self.inputs.transpose(1, 2)) * same).flatten(1).sum(1)
        found, at_once = [], max(1, BLOCK // (width * depth))
        for own in range(0, clients, at_once):
            gradients = torch.bmm(self.inputs[own : own + at_once].transpose(1, 2), self.outputs[own : own + at_once])
            found.append(torch.linalg.vector_norm(gradients, dim=2).square().sum(1))
            if at_once >= clients:
                self.whole = gradients
        return torch.cat(found)

    def squares(self) -> Tensor:
        return self._squares

    def total(self, scales: Tensor) -> Tensor:
        if self.whole is not None:
            return torch.tensordot(scales, self.whole, 1).t().reshape(self.shape)
        scaled = self.outputs * scales[:, None, None]
        return (scaled.flatten(0, 1).t() @ self.inputs.flatten(0, 1)).reshape(self.shape)

    def move(self, weights: Tensor, scales: Tensor) -> Tensor:
        scaled = (self.outputs * scales[:, None, None]).transpose(1, 2)
        if weights.dim() == len(self.shape):
            return torch.baddbmm(weights.flatten(1).unsqueeze(0), scaled, self.inputs).reshape(-1, *self.shape)
        weights.flatten(2).baddbmm_(scaled, self.inputs)
        return weights


@dataclass(frozen=True, slots=True)
class Plain:
    """gradients: [K, ...] as they are, of parameters that are as small as a layer's output: biases, norms' weights."""

    gradients: Tensor

    def squares(self) -> Tensor:
        return self.gradients.flatten(1).square().sum(1)

    def total(self, scales: Tensor) -> Tensor:
        return torch.tensordot(scales, self.gradients, 1)

    def move(self, weights: Tensor, scales: Tensor) -> Tensor:
        own = scales.view(-1, *[1] * (self.gradients.dim() - 1))
        if weights.dim() < self.gradients.dim():
            return torch.addcmul(weights.unsqueeze(0), self.gradients, own)
        return weights.addcmul_(self.gradients, own)


class Tape:
    """Owns what a shared pass leaves for the norms: outputs to differentiate by, their gradients, how to read them.
    Readers hold what a layer took in, never the tape: with the tape, the whole pass is freed, not when cycles are."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.outputs: list[Tensor] = []
        self.gradients: Sequence[Tensor] = ()
        self._readers: list[Callable[[Tensor], Mapping[str, Factors]]] = []

    def watch(self, output: Tensor, reader: Callable[[Tensor], Mapping[str, Factors]]) -> Tensor:
        """``output``, which takes part in the backward pass; ``reader`` turns its gradient into factors by name."""
        if not output.requires_grad:
            output.requires_grad_()
        self.outputs.append(output)
        self._readers.append(reader)
        return output

    def factors(self) -> dict[str, Factors]:
        """By parameter name, from the ``gradients`` of the ``outputs``."""
        found: dict[str, Factors] = {}
        for reader, gradient in zip(self._readers, self.gradients, strict=True):
            more = reader(gradient)
            if found.keys() & more.keys():
                raise ConfigurationError(f"{min(more)}: used twice in one pass, which has no rule; use way 'loop'")
            found |= more
        return found

    def rows(self, values: Tensor) -> Tensor:
        """[R, ..., D] -> [K, M, D]."""
        return values.reshape(self.clients, -1, values.shape[-1])


@contextmanager
def patch(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Modules compute with other functions for a while."""
    for module, forward in forwards.items():
        module.__dict__["forward"] = forward
    try:
        yield
    finally:
        for module in forwards:
            del module.__dict__["forward"]


def obstacle(network: nn.Module) -> str | None:
    """Why a network cannot go through in bulk, None where it can: a layer that holds parameters and has no rule."""
    for name, module in network.named_modules():
        if not any(True for _ in module.parameters(recurse=False)):
            continue
        where = f"{name or 'network'} ({type(module).__name__})"
        if type(module) not in _RULES:
            return f"{where} has no rule"
        for option, expected in _OPTIONS.get(type(module), {}).items():
            if getattr(module, option) != expected:
                return f"{where}: expected {option}={expected!r}"
        if isinstance(module, nn.Conv1d) and isinstance(module.padding, str):
            return f"{where}: expected padding in numbers"
    names = [name for name, _ in network.named_parameters(remove_duplicate=False)]
    return None if len(names) == len(list(network.parameters())) else "parameters are shared between layers"


def record(network: nn.Module, tape: Tape, weights: Mapping[str, Tensor] | None = None) -> dict[nn.Module, Forward]:
    """Forwards that tell the tape of every layer. weights: by name, each client's own [K, ...]; None: all share the
    network's."""
    return {
        module: _RULES[type(module)](module, f"{name}." if name else "", tape, weights).forward
        for name, module in network.named_modules()
        if type(module) in _RULES
    }


@dataclass(frozen=True)
class _Rule:
    """A layer while it is recorded."""

    module: Any
    prefix: str
    tape: Tape
    weights: Mapping[str, Tensor] | None

    def parameter(self, name: str) -> Tensor | None:
        """[K, ...], or [1, ...] where all clients share it."""
        if self.weights is None:
            own: Tensor | None = getattr(self.module, name)
            return None if own is None else own.unsqueeze(0)
        return self.weights.get(f"{self.prefix}{name}")

    def affine(self, rows: Tensor) -> Tensor:
        """[K, M, I] times the weight [K, O, ...]^T, I values of each output, plus bias [K, O] -> [K, M, O]; watched."""
        weight, bias = self.parameter("weight"), self.parameter("bias")
        assert weight is not None
        flat, shape = weight.flatten(2), weight.shape[1:]
        held, prefix, biased = rows.detach(), self.prefix, bias is not None
        if len(weight) == 1:
            output = functional.linear(rows, flat[0], None if bias is None else bias[0])
        elif bias is None:
            output = torch.bmm(rows, flat.transpose(1, 2))
        else:
            output = torch.baddbmm(bias.unsqueeze(1), rows, flat.transpose(1, 2))

        def read(gradient: Tensor) -> Mapping[str, Factors]:
            product = {f"{prefix}weight": Product(held, gradient, shape)}
            return product | ({f"{prefix}bias": Plain(gradient.sum(1))} if biased else {})

        return self.tape.watch(output, read)


class _Linear(_Rule):
    def forward(self, inputs: Tensor) -> Tensor:
        return self.affine(self.tape.rows(inputs)).view(*inputs.shape[:-1], -1)


class _Norm(_Rule):
    def forward(self, inputs: Tensor) -> Tensor:
        weight, bias, shape = self.parameter("weight"), self.parameter("bias"), self.module.normalized_shape
        assert weight is not None
        plain = functional.layer_norm(inputs, shape, None, None, self.module.eps).view(self.tape.clients, -1, *shape)
        prefix, biased, held = self.prefix, bias is not None, plain.detach()

        def read(gradient: Tensor) -> Mapping[str, Factors]:
            weight = {f"{prefix}weight": Plain((gradient * held).sum(1))}
            return weight | ({f"{prefix}bias": Plain(gradient.sum(1))} if biased else {})

        output = plain * weight.unsqueeze(1)
        if bias is not None:
            output = output + bias.unsqueeze(1)
        return self.tape.watch(output, read).view(inputs.shape)


class _Conv(_Rule):
    """As a product over patches: [R, C, S] becomes [R, P, C * kernel]."""

    def forward(self, inputs: Tensor) -> Tensor:
        own = self.module
        sizes = (1, *own.kernel_size), (1, *own.dilation), (0, *own.padding), (1, *own.stride)
        patches = functional.unfold(inputs.unsqueeze(2), *sizes).transpose(1, 2)
        return self.affine(self.tape.rows(patches)).view(*patches.shape[:2], -1).transpose(1, 2)


_RULES: dict[type[nn.Module], Any] = {nn.Linear: _Linear, nn.LayerNorm: _Norm, nn.Conv1d: _Conv}
_OPTIONS: dict[type[nn.Module], dict[str, Any]] = {
    nn.Conv1d: {"groups": 1, "padding_mode": "zeros"},
}
