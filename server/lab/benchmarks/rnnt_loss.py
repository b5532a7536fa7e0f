"""The RNN-T loss, forward and backward: on one CPU thread beside log-softmax, on a GPU beside torchaudio's.

On the CPU both sides get the same logits and take turns, by the processor's time, in a process of their own. On a GPU
the joint is part of both: what a training step pays is the joint's logits too, and ours never holds them all. Without a
GPU, or without torchaudio's CUDA build, those figures are left out, which is said."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from device_sdk.benchmarks import Figure, alternate
from server.lab.benchmarks.children import KEEPING, run_child

if TYPE_CHECKING:
    from torch import Tensor

UTTERANCES, FRAMES, TOKENS, PIECES = 8, 200, 20, 128
TURNS, WARM_UP = 30, 3
MILLISECONDS, SOFTMAX = 45.0, 2.5

ON_GPU = {"utterances": 16, "frames": 400, "tokens": 60, "pieces": 2500, "joiner": 640}
GPU_TURNS = 10
GPU_SPEED, GPU_MEMORY = 1.5, 0.5


def benchmark() -> list[Figure]:
    """Milliseconds of CPU and their ratio to log-softmax; on a GPU, speed and peak memory beside torchaudio's."""
    found = run_child(__name__, "measure_cpu", KEEPING)
    shape = f"B={UTTERANCES} T={FRAMES} U={TOKENS} V={PIECES}"
    name, unit = f"loss and gradient of logits, {shape}, one thread", "ms of CPU"
    figures = [
        Figure(name, unit, found["ours"], target=MILLISECONDS, lower_is_better=True),
        Figure(name, unit, found["ours"], "log-softmax and its gradient", found["peer"], SOFTMAX, True),
    ]
    gpu = run_child(__name__, "measure_gpu")
    if "missing" in gpu:
        print(f"bench rnnt-loss: nothing measured on a GPU: {gpu['missing']}", file=sys.stderr)
        return figures
    shape = " ".join(f"{name}={value}" for name, value in ON_GPU.items())
    speed, peer = 1e3 / gpu["ours"], 1e3 / gpu["peer"]
    return [
        *figures,
        Figure(f"joint, loss and gradient, {shape}", "per second", speed, "torchaudio", peer, GPU_SPEED),
        Figure("the same, peak memory", "MB", gpu["megabytes"], "torchaudio", gpu["peer_megabytes"], GPU_MEMORY, True),
    ]


def measure_cpu() -> dict[str, float]:
    """Median milliseconds of CPU of the loss (``ours``) and of log-softmax (``peer``), each with its gradient."""
    import torch

    from export.losses.rnnt import rnnt_loss_of_logits

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(UTTERANCES, FRAMES, TOKENS + 1, PIECES, generator=generator).requires_grad_()
    tokens = torch.randint(1, PIECES, (UTTERANCES, TOKENS), generator=generator)
    frames, lengths = torch.full((UTTERANCES,), FRAMES), torch.full((UTTERANCES,), TOKENS)
    coming = torch.randn(logits.shape, generator=generator)  # the gradient that reaches log-softmax

    def ours() -> None:
        torch.autograd.grad(rnnt_loss_of_logits(logits, tokens, frames, lengths).sum(), logits)

    def peer() -> None:
        torch.autograd.grad(logits.log_softmax(-1), logits, coming)

    seconds = alternate({"ours": ours, "peer": peer}, TURNS, WARM_UP)
    return {name: 1e3 * value for name, value in seconds.items()}


def measure_gpu() -> dict[str, Any]:
    """Median milliseconds and peak megabytes of both sides on a GPU; ``missing`` says why there are none."""
    import torch

    if not torch.cuda.is_available():
        return {"missing": "no CUDA device"}
    try:
        from torchaudio.functional import rnnt_loss as of_torchaudio
    except (ImportError, OSError) as error:
        return {"missing": f"torchaudio: {error}"}
    from export.losses.rnnt import rnnt_loss

    size, width, most, pieces, joiner = ON_GPU.values()
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return (0.3 * torch.randn(*shape, device="cuda", generator=generator)).requires_grad_()

    inputs = normal(size, width, joiner), normal(size, most + 1, joiner), normal(pieces, joiner), normal(pieces)
    tokens = torch.randint(1, pieces, (size, most), device="cuda", generator=generator)
    frames, lengths = (torch.full((size,), value, device="cuda") for value in (width, most))

    def ours() -> Tensor:
        return rnnt_loss(*inputs, tokens, frames, lengths).sum()

    def peer() -> Tensor:
        encoded, predicted, weight, bias = inputs
        logits = torch.tanh(encoded[:, :, None] + predicted[:, None]) @ weight.T + bias
        loss: Tensor = of_torchaudio(logits, tokens.int(), frames.int(), lengths.int(), blank=0, reduction="sum")
        return loss

    found: dict[str, Any] = {}
    for name, side, memory in (("ours", ours, "megabytes"), ("peer", peer, "peer_megabytes")):

        def step(side: Callable[[], Tensor] = side) -> None:
            torch.autograd.grad(side(), inputs)
            torch.cuda.synchronize()

        torch.cuda.reset_peak_memory_stats()
        found[name] = 1e3 * alternate({name: step}, GPU_TURNS, WARM_UP, perf_counter)[name]
        found[memory] = torch.cuda.max_memory_allocated() / (1 << 20)
    return found
