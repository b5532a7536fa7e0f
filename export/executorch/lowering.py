"""From a torch module to the bytes of an ExecuTorch program."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor, nn

from device_sdk.errors import MissingExtraError
from device_sdk.runtimes.executorch.bindings import METHOD

__all__ = ["lowered", "lowered_to_xnnpack"]

Varying = tuple[object, ...]


def lowered_to_xnnpack(module: nn.Module, inputs: tuple[Tensor, ...], varying: Varying) -> bytes:
    """A program whose operators XNNPACK runs as far as it has them. varying: for each input, sizes that may vary.

    Raises :class:`MissingExtraError` where ExecuTorch is not installed.
    """
    with _quiet():
        exir = _exir()
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

        traced = torch.export.export(module.eval(), inputs, dynamic_shapes=varying)
        edge = exir.to_edge_transform_and_lower({METHOD: traced}, partitioner=[XnnpackPartitioner()])
        return bytes(edge.to_executorch().buffer)


def lowered(module: nn.Module, inputs: tuple[Tensor, ...], varying: Varying) -> bytes:
    """A program of ExecuTorch's own kernels, with scans as loops. Its inputs are read where they lie, not copied.

    Raises :class:`MissingExtraError` where ExecuTorch is not installed.
    """
    with _quiet(), torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
        exir = _exir()
        from executorch.exir.passes import MemoryPlanningPass

        traced = torch.export.export(module.eval(), inputs, dynamic_shapes=varying, strict=False)
        edge = exir.to_edge_transform_and_lower(
            {METHOD: traced}, compile_config=exir.EdgeCompileConfig(_check_ir_validity=False)
        )
        # Views stay copies: what a loop writes and its next step reads must not lie in the same place.
        planning = MemoryPlanningPass(alloc_graph_input=False)
        config = exir.ExecutorchBackendConfig(remove_view_copy=False, memory_planning_pass=planning)
        return bytes(edge.to_executorch(config).buffer)


def _exir() -> ModuleType:
    try:
        import executorch.exir as exir
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"export to ExecuTorch needs the module {error.name!r}; "
            "install it with: pip install 'idiolect-server[train]'"
        ) from error
    return exir


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the remarks of torchao and ExecuTorch on their own optional parts."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
