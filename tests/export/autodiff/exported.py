"""Torch modules as ONNX graphs, and their gradients by both."""

import io
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import Tensor, nn

from device_sdk.runtimes.onnxruntime import open_session, run
from export.autodiff import differentiate, prepare
from export.graphs.builder import GraphBuilder

Arrays = dict[str, NDArray[np.generic]]


def exported(
    module: nn.Module, given: Sequence[Tensor], opset: int = 17, outputs: Sequence[str] = ("y",)
) -> onnx.ModelProto:
    """Inputs are called x0, x1, ..."""
    content = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.float().eval(),
            tuple(given),
            content,
            dynamo=False,
            opset_version=opset,
            input_names=[f"x{n}" for n in range(len(given))],
            output_names=list(outputs),
            do_constant_folding=False,
        )
    return onnx.load_model_from_string(content.getvalue())


def by_graph(
    model: onnx.ModelProto,
    wanted: Sequence[str],
    feeds: Mapping[str, NDArray[np.generic]],
    cotangents: Mapping[str, NDArray[np.generic]],
    factors: Mapping[str, NDArray[np.generic]] | None = None,
) -> Arrays:
    """Gradients of the outputs' sum, weighted by ``cotangents``, on plain onnxruntime."""
    held = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    graph = prepare(model, [name for name in wanted if name in held])
    matrices = {name.rpartition(".")[0] for name in factors or {}}
    builder = differentiate(graph, wanted, list(cotangents), GraphBuilder(None, prefix="d/"), matrices)
    session = open_session(builder.finish("backward", {}), "backward")
    given = {**held, **feeds, **(factors or {}), **{f"cotangent.{name}": value for name, value in cotangents.items()}}
    found = run(session, {each.name: given[each.name] for each in session.get_inputs()}, "backward")
    names = [each.name.removeprefix("gradient.") for each in session.get_outputs()]
    return dict(zip(names, found, strict=True))


def by_torch(module: nn.Module, given: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Arrays:
    """The same in float64; inputs are called x0, x1, ..."""
    module = module.double()
    inputs = [each.double().requires_grad_() if each.is_floating_point() else each for each in given]
    module.zero_grad()
    outputs = module(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(list(outputs), [each.double() for each in cotangents])
    found = {f"x{n}": each.grad for n, each in enumerate(inputs) if each.is_floating_point()}
    found |= {name: parameter.grad for name, parameter in module.named_parameters()}
    return {name: each.detach().numpy() for name, each in found.items() if each is not None}


def distance(found: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """Relative, by L2."""
    return float(np.linalg.norm((found - expected).ravel()) / max(float(np.linalg.norm(expected.ravel())), 1e-12))
