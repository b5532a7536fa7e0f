"""Each rule against torch in float64, on graphs as torch's own exporter writes them, at opsets that models come in."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.export.autodiff.exported import by_graph, by_torch, distance, exported

Function = Callable[..., Tensor]


class Of(nn.Module):
    """A function of an input and of a weight."""

    def __init__(self, function: Function, *weight: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(0.5 + torch.rand(*weight))

    def forward(self, *given: Tensor) -> Any:
        return self.function(*given, self.weight)


def rows(*shape: int) -> Tensor:
    return torch.randn(*shape)


CASES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "Add a row": (lambda x, w: x + w, (6,)),
    "Add a column": (lambda x, w: x * 2 + w, (2, 1, 6)),
    "Sub": (lambda x, w: (w - x) - (x - w * w), (6,)),
    "Mul": (lambda x, w: x * w * x, (1,)),
    "Mul, both repeated": (lambda x, w: x[:, :1] * x * w + x[:1], (6,)),
    "Div": (lambda x, w: x / w + w / (x * x + 1), (1, 6)),
    "Neg, Abs, Exp, Log": (lambda x, w: torch.log(torch.exp(-(x * w).abs()) + 1), (6,)),
    "Sqrt, Reciprocal": (lambda x, w: torch.sqrt(x.abs() * w) + torch.reciprocal(w + x.abs()), (6,)),
    "Pow by numbers": (lambda x, w: ((x * w) ** 2 + 0.1) ** -0.5 + (x * w) ** 3 + (x.abs() + 0.1) ** 0.5, (6,)),
    "Pow by a weight": (lambda x, w: (x.abs() + 0.1) ** w, (6,)),
    "Tanh, Sigmoid, Relu": (lambda x, w: torch.tanh(x * w) * torch.sigmoid(x) + functional.relu(x * w), (6,)),
    "Softplus, LeakyRelu": (lambda x, w: functional.softplus(x * w) + functional.leaky_relu(x * w, 0.2), (6,)),
    "Elu": (lambda x, w: functional.elu(x * w, 0.7), (6,)),
    "Erf": (lambda x, w: functional.gelu(x * w), (6,)),
    "Sin, Cos": (lambda x, w: torch.sin(x * w) + torch.cos(x * w), (6,)),
    "Max, Min": (lambda x, w: torch.maximum(x, w) + torch.minimum(x, w * x), (6,)),
    "Max of equal ones": (lambda x, w: torch.maximum(x * w, x * w * 1.0), (6,)),
    "Clip": (lambda x, w: (x * w).clamp(-0.5, 0.7), (6,)),
    "Where": (lambda x, w: torch.where(x > 0, x * w, w), (6,)),
    "Where, masked": (lambda x, w: (x * w).masked_fill(x > 0.3, -10.0).softmax(-1), (6,)),
    "Softmax": (lambda x, w: (x * w).softmax(1) + (x * w).softmax(-1), (6,)),
    "LogSoftmax": (lambda x, w: (x * w).log_softmax(-1), (6,)),
    "ReduceLogSumExp": (lambda x, w: (x * w).logsumexp(-1), (6,)),
    "ReduceMean": (lambda x, w: x * (x * w).mean(1, keepdim=True) + (x * w).mean(-1, keepdim=True), (6,)),
    "ReduceSum": (lambda x, w: (x * w).sum((0, 2)) + (x * w).sum(), (6,)),
    "ReduceL2": (lambda x, w: x / (x * w).norm(dim=-1, keepdim=True), (6,)),
    "ReduceMax, ReduceMin": (lambda x, w: (x * w).amax(-1) + (x * w).amin(1, keepdim=True)[..., 0], (6,)),
    "MatMul": (lambda x, w: x @ w, (6, 5)),
    "MatMul of batches": (lambda x, w: (x * w) @ x.transpose(1, 2) @ x, (6,)),
    "MatMul, one left for all": (lambda x, w: w @ x.transpose(1, 2), (3, 6)),
    "MatMul, one right for all": (lambda x, w: x.unsqueeze(1) @ (w * x[:1, :1, :1]), (1, 4, 6, 3)),
    "Transpose, Reshape": (lambda x, w: (x * w).reshape(2, 7, 2, 3).permute(2, 0, 3, 1).flatten(1), (6,)),
    "Squeeze, Unsqueeze": (lambda x, w: (x * w).unsqueeze(1).unsqueeze(-1).squeeze(1), (6,)),
    "Concat": (lambda x, w: torch.cat([x * w, w.expand(2, 1, 6), x], 1), (6,)),
    "Split": (lambda x, w: torch.split(x * w, [1, 2, 3], -1)[1] * 2 + torch.split(x * w, 2, -1)[0], (6,)),
    "Split, all used": (lambda x, w: torch.mul(*(x * w).chunk(2, -1)), (6,)),
    "Slice": (lambda x, w: (x * w)[:, 1:-2] * (x * w)[:, 3:, 2:5][..., :1], (6,)),
    "Slice, overlapping": (lambda x, w: (x * w)[:, 1:5] + (x * w)[:, 2:6] + (x * w)[:, 0:4], (6,)),
    "Slice by steps": (lambda x, w: (x * w)[:, ::3], (6,)),
    "Slice backwards": (lambda x, w: (x * w).flip(1), (6,)),
    "Gather of one": (lambda x, w: (x * w)[:, :, 2] * (x * w)[0, 1, 1], (6,)),
    "Gather": (lambda x, w: (x * w)[:, torch.tensor([0, 2, 2, 1])], (6,)),
    "GatherElements": (lambda x, w: (x * w).gather(1, torch.tensor([[[0, 1, 2, 3, 3, 3]]]).repeat(2, 2, 1)), (6,)),
    "Expand": (lambda x, w: w.expand(2, 7, 6) * x, (6,)),
    "Tile": (lambda x, w: (x * w).repeat(1, 2, 3), (6,)),
    "Pad": (lambda x, w: functional.pad(x * w, (1, 2, 3, 0)), (6,)),
    "Pad, negative": (lambda x, w: functional.pad(x * w, (-1, 2, 0, -2)), (6,)),
    "GLU": (lambda x, w: functional.glu(x @ w, -1), (6, 8)),
}

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Gemm": (lambda: nn.Linear(6, 5), (4, 6)),
    "LayerNormalization": (lambda: nn.LayerNorm(6), (2, 7, 6)),
    "LayerNormalization of two axes": (lambda: nn.LayerNorm((9, 8)), (2, 3, 9, 8)),
    "BatchNormalization": (lambda: nn.BatchNorm1d(6), (2, 6, 11)),
    "Conv": (lambda: nn.Conv1d(6, 5, 3), (2, 6, 11)),
    "Conv, padded": (lambda: nn.Conv1d(6, 5, 4, padding=2), (1, 6, 11)),
    "Conv, strided": (lambda: nn.Conv1d(6, 5, 4, stride=3, padding=1), (2, 6, 11)),
    "Conv, dilated": (lambda: nn.Conv1d(6, 4, 3, dilation=2, padding=3), (2, 6, 11)),
    "Conv in groups": (lambda: nn.Conv1d(6, 9, 3, groups=3, padding=1), (2, 6, 11)),
    "Conv in groups, strided": (lambda: nn.Conv1d(6, 4, 3, groups=2, stride=2), (1, 6, 11)),
    "Conv, depthwise": (lambda: nn.Conv1d(6, 6, 5, groups=6, padding=2), (1, 6, 11)),
    "Conv, depthwise, several rows": (lambda: nn.Conv1d(6, 6, 5, groups=6), (3, 6, 11)),
    "Conv, depthwise, strided": (lambda: nn.Conv1d(6, 6, 3, groups=6, stride=2), (1, 6, 12)),
    "Conv, depthwise, twice as many": (lambda: nn.Conv1d(6, 12, 3, groups=6, padding=1), (1, 6, 11)),
    "Conv, padded beyond its reach": (lambda: nn.Conv1d(6, 4, 2, padding=3), (2, 6, 11)),
    "Conv of one place": (lambda: nn.Conv1d(6, 4, 1), (2, 6, 11)),
    "Conv of two axes": (lambda: nn.Conv2d(4, 5, 3), (2, 4, 12, 10)),
    "Conv of two axes, strided": (lambda: nn.Conv2d(4, 5, 3, stride=2), (1, 4, 12, 10)),
    "Conv of two axes, strides 1 and 2": (lambda: nn.Conv2d(4, 3, 3, stride=(1, 2), padding=(0, 1)), (1, 4, 12, 10)),
    "Conv of two axes, depthwise": (lambda: nn.Conv2d(4, 4, 7, groups=4, padding=(0, 3)), (1, 4, 12, 10)),
    "Conv of one channel": (lambda: nn.Conv2d(1, 5, 3, padding=(0, 1)), (2, 1, 9, 8)),
}

CLOSE = 2e-6


@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("case", CASES)
def test_operators(case: str, opset: int) -> None:
    torch.manual_seed(1)
    function, weight = CASES[case]
    _compare(Of(function, *weight), (rows(2, 7, 6),), opset)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("case", MODULES)
def test_layers(case: str, opset: int) -> None:
    torch.manual_seed(1)
    make, shape = MODULES[case]
    module = make().eval()
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    _compare(module, (rows(*shape),), opset)


def test_embeddings_get_what_all_their_places_give() -> None:
    torch.manual_seed(1)
    _compare(nn.Embedding(9, 4), (torch.tensor([[1, 2, 2], [8, 0, 1]]),), 17)


class Recurrent(nn.Module):
    """Two LSTM layers from a state to a state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4, 2)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(x, (h, c))
        return y, h, c


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("steps", [1, 7])
def test_lstm_layers_from_a_state_to_a_state(steps: int, opset: int) -> None:
    torch.manual_seed(1)
    given = rows(steps, 1, 5), rows(2, 1, 4), rows(2, 1, 4)
    cotangents = rows(steps, 1, 4), rows(2, 1, 4), rows(2, 1, 4)
    module = Recurrent()
    model = exported(module, given, opset, ("y", "h", "c"))
    seeds = {name: each.numpy() for name, each in zip(("y", "h", "c"), cotangents, strict=True)}
    names = [name for name, _ in module.named_parameters()]
    feeds = {f"x{n}": each.numpy() for n, each in enumerate(given)}
    found = by_graph(model, [*feeds, *names], feeds, seeds)
    expected = by_torch(module, given, cotangents)
    assert found.keys() == expected.keys()
    for name in found:
        assert distance(found[name], expected[name]) < CLOSE, name


def _compare(module: nn.Module, given: tuple[Tensor, ...], opset: int) -> None:
    model = exported(module, given, opset)
    y = module.float()(*given).detach()
    cotangent = torch.randn_like(y)
    held = [each.name for each in model.graph.initializer]
    names = [name for name, _ in module.named_parameters() if name in held]
    feeds = {f"x{n}": each.numpy() for n, each in enumerate(given)}
    inputs = [name for name, each in feeds.items() if each.dtype == np.float32]
    found = by_graph(model, [*names, *inputs], feeds, {"y": cotangent.numpy()})
    expected = by_torch(module, given, (cotangent,))
    assert set(found) >= {*names}
    for name in found:
        assert distance(found[name], expected[name]) < CLOSE, name
    missing = expected.keys() - found.keys()
    assert not missing, missing


@pytest.mark.parametrize("case", ["MatMul", "Gemm"])
def test_gradients_by_factors_are_those_of_the_matrix_times_the_other_factor(case: str) -> None:
    torch.manual_seed(1)
    module = nn.Linear(6, 5)
    given = rows(4, 6) if case == "Gemm" else rows(2, 4, 6)
    model = exported(module, (given,))
    cotangent = torch.randn(*given.shape[:-1], 5)
    name = next(each.name for each in model.graph.initializer if len(each.dims) == 2)
    shape = next(list(each.dims) for each in model.graph.initializer if each.name == name)
    generator = np.random.default_rng(0)
    up = generator.normal(size=(shape[0], 2)).astype(np.float32)
    down = generator.normal(size=(2, shape[1])).astype(np.float32)
    feeds, seeds = {"x0": given.numpy()}, {"y": cotangent.numpy()}
    whole = by_graph(model, [name], feeds, seeds)[name]
    found = by_graph(model, [name], feeds, seeds, {f"{name}.up": up, f"{name}.down": down})
    assert set(found) == {f"{name}.up", f"{name}.down"}
    assert distance(found[f"{name}.up"], whole @ down.T) < CLOSE
    assert distance(found[f"{name}.down"], up.T @ whole) < CLOSE
