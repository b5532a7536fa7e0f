"""The Triton kernels against torch: on CUDA where there is a device, else in Triton's interpreter on the CPU.

The interpreter is chosen when Triton is loaded, so those tests run in a process of their own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from export.losses import rnnt, rows
from tests.export.losses.test_rnnt import problem

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

here = pytest.mark.skipif(
    find_spec("triton") is None or not (INTERPRETED or torch.cuda.is_available()),
    reason="needs Triton (idiolect-server[gpu]), and a CUDA device or TRITON_INTERPRET=1",
)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed (idiolect-server[gpu])")
@pytest.mark.skipif(INTERPRETED, reason="this is the process that it starts")
def test_kernels_in_the_interpreter() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:cov", "-m", "", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


@pytest.mark.skipif(find_spec("triton") is None or INTERPRETED, reason="needs Triton (idiolect-server[gpu]), compiling")
@pytest.mark.parametrize(("dtype", "exact"), [("fp32", "fp32"), ("bf16", "fp32"), ("fp64", "fp64")])
def test_kernels_compile_for_a_gpu(dtype: str, exact: str) -> None:
    """The compiler needs no device; what it refuses, the interpreter may take."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from export.losses import kernels

    chosen = {"BLOCK": 1024, "EXACT": getattr(triton.language, {"fp32": "float32", "fp64": "float64"}[exact])}
    whole = {"labels": "*i64", "e": "*i64", "p": "*i64", "cells": "i32", "width": "i32"}
    shares = {"to_blank": f"*{exact}", "to_label": f"*{exact}"}
    for kernel, found in ((kernels._join, dtype), (kernels._score, exact), (kernels._gradient, dtype)):
        kinds = {**whole, **shares, "found": f"*{found}"}
        signature = {name: "constexpr" if name in chosen else kinds.get(name, f"*{dtype}") for name in kernel.arg_names}
        compiled = triton.compile(ASTSource(kernel, signature, chosen), target=GPUTarget("cuda", 90, 32))
        assert compiled.asm["cubin"], kernel.__name__


@here
@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [2, 37, 1030])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_rows(dtype: torch.dtype, tolerance: float, pieces: int) -> None:
    from export.losses import kernels

    generator = torch.Generator().manual_seed(pieces)
    exact = torch.promote_types(dtype, torch.float32)
    logits = (4.0 * torch.randn(9, pieces, generator=generator, dtype=torch.float64)).to(DEVICE, dtype)
    logits[3, 0] = -300.0  # a share that underflows
    labels = torch.randint(0, pieces, (9,), generator=generator).to(DEVICE)
    to_blank, to_label = torch.rand(2, 9, generator=generator, dtype=torch.float64).to(DEVICE, exact)
    for one, other in zip(kernels.score(logits, labels), rows.score(logits, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    ours = kernels.gradient(logits, labels, to_blank, to_label, dtype)
    theirs = rows.gradient(logits, labels, to_blank, to_label, dtype)
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@here
@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-2)])
def test_join(dtype: torch.dtype, tolerance: float) -> None:
    from export.losses import kernels

    generator = torch.Generator().manual_seed(1)
    encoded, predicted = (
        (30.0 * torch.randn(count, 70, generator=generator, dtype=torch.float64)).to(DEVICE, dtype) for count in (4, 3)
    )
    e, p = torch.tensor([0, 3, 3, 1], device=DEVICE), torch.tensor([2, 0, 2, 1], device=DEVICE)
    found = kernels.join(encoded, predicted, e, p)
    torch.testing.assert_close(found, rows.join(encoded, predicted, e, p), rtol=tolerance, atol=tolerance)


@here
@pytest.mark.gpu
def test_the_loss_by_kernels_is_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    from export.losses import kernels

    parameters, labels = problem(7, 3, 6, 4, 5, 9)
    results = []
    for module in (rows, kernels):
        monkeypatch.setattr(rnnt, "rows_on", lambda device, module=module: module)
        given = [value.detach().to(DEVICE).requires_grad_() for value in parameters]
        loss = rnnt.rnnt_loss(*given, *(value.to(DEVICE) for value in labels))
        results.append([loss, *torch.autograd.grad((loss * loss).sum(), given)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)
