"""Joint and RNN-T loss, forward and backward: on one CPU thread beside log-softmax, on a GPU beside torchaudio's loss.

A training step pays for the joint's logits too, so both sides make them from the same inputs; ours never holds them
all. On the CPU they take turns, by the processor's time, in a process of their own. Without a GPU, or without
torchaudio's CUDA build, those figures are left out, which is said."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

from device_sdk.benchmarks import Figure, alternate
from server.lab.benchmarks.children import KEEPING, run_child

if TYPE_CHECKING:
    from torch import Tensor

ON_CPU = {"utterances": 8, "frames": 200, "tokens": 20, "pieces": 128, "joiner": 128}
ON_GPU = {"utterances": 16, "frames": 400, "tokens": 60, "pieces": 2500, "joiner": 640}
TURNS, GPU_TURNS, WARM_UP = 10, 10, 3
SOFTMAX, GPU_SPEED, GPU_MEMORY = 2.0, 1.5, 0.5


def benchmark() -> list[Figure]:
    """Milliseconds of CPU beside log-softmax's; on a GPU, speed and peak memory beside torchaudio's."""
    found = run_child(__name__, "measure_cpu", KEEPING)
    name = f"joint, loss and gradient, {_shape(ON_CPU)}"
    peer = "joint, log-softmax and gradient"
    figures = [Figure(f"{name}, one thread", "ms of CPU", found["ours"], peer, found["peer"], SOFTMAX, True)]
    gpu = run_child(__name__, "measure_gpu")
    if "missing" in gpu:
        print(f"bench rnnt-loss: nothing measured on a GPU: {gpu['missing']}", file=sys.stderr)
        return figures
    speed, peer_speed = 1e3 / gpu["ours"], 1e3 / gpu["peer"]
    name = f"joint, loss and gradient, {_shape(ON_GPU)}"
    return [
        *figures,
        Figure(name, "per second", speed, "torchaudio", peer_speed, GPU_SPEED),
        Figure("the same, peak memory", "MB", gpu["megabytes"], "torchaudio", gpu["peer_megabytes"], GPU_MEMORY, True),
    ]


def _shape(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in sizes.items())


def measure_cpu() -> dict[str, float]:
    """Median milliseconds of CPU of the loss (``ours``) and of log-softmax (``peer``), each with its gradient."""
    import torch

    torch.set_num_threads(1)
    inputs, ours, _ = _problem(ON_CPU, "cpu")
    coming = torch.ones_like(_logits(inputs))  # the gradient that reaches log-softmax

    def peer() -> None:
        torch.autograd.grad(_logits(inputs).log_softmax(-1), inputs, coming)

    sides = {"ours": lambda: torch.autograd.grad(ours(), inputs), "peer": peer}
    return {name: 1e3 * value for name, value in alternate(sides, TURNS, WARM_UP).items()}


def measure_gpu() -> dict[str, Any]:
    """Median milliseconds and peak megabytes of both sides on a GPU; ``missing`` says why there are none."""
    import torch

    if not torch.cuda.is_available():
        return {"missing": "no CUDA device"}
    try:
        from torchaudio.functional import rnnt_loss as of_torchaudio
    except (ImportError, OSError) as error:
        return {"missing": f"torchaudio: {error}"}
    inputs, ours, labels = _problem(ON_GPU, "cuda")

    def peer() -> Tensor:
        numbers = (each.int() for each in labels)
        loss: Tensor = of_torchaudio(_logits(inputs), *numbers, blank=0, reduction="sum")
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


def _problem(
    sizes: Mapping[str, int], device: str
) -> tuple[tuple[Tensor, ...], Callable[[], Tensor], tuple[Tensor, ...]]:
    """(encoded, predicted, weight, bias), the sum of our losses of them, and (tokens, frames, lengths), all whole."""
    import torch

    from export.losses.rnnt import rnnt_loss

    size, width, most, pieces, joiner = sizes.values()
    generator = torch.Generator(device).manual_seed(0)
    shapes = (size, width, joiner), (size, most + 1, joiner), (pieces, joiner), (pieces,)
    inputs = tuple((0.3 * torch.randn(*shape, device=device, generator=generator)).requires_grad_() for shape in shapes)
    tokens = torch.randint(1, pieces, (size, most), device=device, generator=generator)
    labels = (tokens, *(torch.full((size,), value, device=device) for value in (width, most)))
    return inputs, lambda: rnnt_loss(*inputs, *labels).sum(), labels


def _logits(inputs: tuple[Tensor, ...]) -> Tensor:
    encoded, predicted, weight, bias = inputs
    return (encoded[:, :, None] + predicted[:, None]).tanh() @ weight.T + bias
