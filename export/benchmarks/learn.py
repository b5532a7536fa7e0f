"""A local gradient step: the training graph on plain onnxruntime against torch eager, one thread each.

Shape: ``bench`` architecture, T = 200 stacked frames, U = 20 tokens, N = 1 and 4 hypotheses over one encoder pass. Both
sides do the same step (forward, backward, SGD) on the same numbers, each in a process of its own, in turns, so that
peak memory is a side's own and a busy machine slows both. torch uses the project's memory-lean RNN-T loss.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks.figures import Figure
from device_sdk.benchmarks.memory import peak_megabytes
from device_sdk.bundle.architecture import PRESETS

__all__ = ["Measurement", "benchmark"]

FRAMES, TOKENS, HYPOTHESES = 200, 20, (1, 4)
TURNS, STEPS, WARM_UP = 3, 7, 2
RATE = np.float32(1e-3)

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side's step. milliseconds: median; megabytes: peak resident memory of its process."""

    milliseconds: float
    megabytes: float


def benchmark() -> list[Figure]:
    """Time and peak memory of a step, ours over torch. Targets: time 1.0, memory 0.6."""
    from export.graphs import training

    figures = []
    with TemporaryDirectory(prefix="idiolect-learn-") as folder:
        graph = Path(folder) / "training.onnx"
        graph.write_bytes(training(PRESETS["bench"]))
        for count in HYPOTHESES:
            turns = [{side: _measure(side, graph, count) for side in ("onnxruntime", "torch")} for _ in range(TURNS)]
            found = {side: _median([turn[side] for turn in turns]) for side in ("onnxruntime", "torch")}
            ours, peer = found["onnxruntime"], found["torch"]
            shape = f"T={FRAMES}, U={TOKENS}, N={count}"
            figures += [
                Figure(f"local step ({shape})", "ms", ours.milliseconds, "torch eager", peer.milliseconds, 1.0, True),
                Figure(f"peak memory ({shape})", "MB", ours.megabytes, "torch eager", peer.megabytes, 0.6, True),
            ]
    return figures


def _median(turns: list[Measurement]) -> Measurement:
    return Measurement(
        statistics.median(turn.milliseconds for turn in turns), statistics.median(turn.megabytes for turn in turns)
    )


def _measure(side: str, graph: Path, count: int) -> Measurement:
    command = [sys.executable, "-m", __name__, side, str(graph), str(count)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True, slots=True)
class Problem:
    """weights: by name; features: [3 T, M]; tokens: [N, U] int64."""

    weights: Mapping[str, Float]
    features: Float
    tokens: NDArray[np.int64]


def problem(count: int, frames: int = 0, tokens: int = 0) -> Problem:
    """Seeded weights and one utterance with ``count`` hypotheses; the benchmark's shape unless given."""
    architecture = PRESETS["bench"]
    rng = np.random.default_rng(0)
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    weights = {name: rng.normal(0.0, 0.06, shape).astype(np.float32) for name, shape in shapes.items()}
    features = rng.normal(0.0, 1.0, ((frames or FRAMES) * architecture.subsampling_factor, architecture.mel_bins))
    said = rng.integers(1, architecture.pieces, (count, tokens or TOKENS))
    return Problem(weights, features.astype(np.float32), said)


def onnxruntime_step(problem: Problem, graph: bytes) -> Callable[[], dict[str, Float]]:
    """Ours: a function that takes one step and returns the weights."""
    from device_sdk.runtimes.training import TrainingSession

    session = TrainingSession(graph=graph, architecture=PRESETS["bench"])
    weights = {name: value.copy() for name, value in problem.weights.items()}
    hypotheses, share = problem.tokens.tolist(), np.full(len(problem.tokens), 1.0 / len(problem.tokens))

    def step() -> dict[str, Float]:
        for name, gradient in session.run(weights, problem.features, hypotheses, share).gradients.items():
            weights[name] -= RATE * gradient
        return weights

    return step


def torch_step(problem: Problem, _: bytes) -> Callable[[], Any]:
    """The peer: a function that takes one step and returns the network."""
    import torch

    from export.losses.rnnt import rnnt_loss
    from export.networks.rnnt import RNNT

    torch.set_num_threads(1)
    network = RNNT(PRESETS["bench"]).from_parameters(problem.weights)
    for name, value in network.named_parameters():
        value.requires_grad_("bias_hh" not in name)  # torch's second bias would take the merged one's step twice
    trainable = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=float(RATE))
    count = len(problem.tokens)
    features, tokens = torch.from_numpy(problem.features)[None], torch.from_numpy(problem.tokens)
    frames, lengths = torch.full((count,), len(problem.features) // 3), torch.full((count,), tokens.shape[1])

    def step() -> RNNT:
        optimizer.zero_grad()
        encoded = network.encode(features).expand(count, -1, -1)
        output = network.joiner_output
        losses = rnnt_loss(encoded, network.predict(tokens), output.weight, output.bias, tokens, frames, lengths)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return network

    return step


def measure_here(side: str, graph: Path, count: int) -> dict[str, float]:
    """Take steps in this process; the fields of a :class:`Measurement`."""
    make = {"onnxruntime": onnxruntime_step, "torch": torch_step}[side]
    step = make(problem(count), graph.read_bytes())
    times = []
    for _ in range(WARM_UP + STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return {"milliseconds": 1e3 * statistics.median(times[WARM_UP:]), "megabytes": peak_megabytes()}


if __name__ == "__main__":
    print(json.dumps(measure_here(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
