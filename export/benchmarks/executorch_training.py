"""A local gradient step on ExecuTorch beside the same step on onnxruntime: time, memory and how far they agree.

Shape: ``bench`` architecture, T = 200 stacked frames, U = 20 tokens, one hypothesis, in a bucket of that size. Each
side is a process of its own, in turns, one thread; time is the processor's. What ExecuTorch's process holds is mostly
torch, which its Python bindings import and apps in C++, Kotlin or Swift do not: so its memory is what loading and
running the program add.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure
from device_sdk.benchmarks.memory import peak_megabytes
from device_sdk.bundle.architecture import PRESETS
from device_sdk.runtimes.executorch import Bucket
from device_sdk.runtimes.executorch.bindings import Runtime
from device_sdk.runtimes.executorch.manifest import training_shapes
from device_sdk.runtimes.executorch.training import padded
from device_sdk.runtimes.feeds import utterance_feeds
from device_sdk.runtimes.training import TrainingSession
from export.benchmarks.learn import SHORT, problem

__all__ = ["training_figures"]

BUCKET = Bucket(frames=200, tokens=20, hypotheses=1)
TURNS, STEPS = 3, 5
PEER = "onnxruntime"
CLOSE = 1e-3

Float = NDArray[np.float32]


def training_figures() -> list[Figure]:
    """Time and memory of a step, size of the program, and the relative difference of gradients."""
    from export.executorch.lowering import lowered
    from export.executorch.training import TrainingStep, training_example
    from export.graphs import training

    sizes = PRESETS[SHORT.preset]
    with TemporaryDirectory(prefix="idiolect-executorch-") as name:
        folder = Path(name)
        (folder / "training.onnx").write_bytes(training(sizes))
        program = lowered(TrainingStep(sizes), *training_example(sizes, BUCKET))
        (folder / BUCKET.file).write_bytes(program)
        turns = [[_measured(side, folder) for side in ("executorch", PEER)] for _ in range(TURNS)]
        given = {side: np.load(folder / f"{side}.npy").astype(np.float64) for side in ("executorch", PEER)}
    ours, peer = (
        [statistics.median(values) for values in zip(*side, strict=True)] for side in zip(*turns, strict=True)
    )
    apart = float(np.linalg.norm(given["executorch"] - given[PEER]) / np.linalg.norm(given[PEER]))
    what = f"ExecuTorch ({SHORT})"
    return [
        Figure(f"local step, {what}", "ms of CPU", ours[0], PEER, peer[0], lower_is_better=True),
        Figure(f"memory of steps, {what}", "MB", ours[1], PEER, peer[1], lower_is_better=True),
        Figure(f"program, {what}", "kB", len(program) / 1e3, lower_is_better=True),
        Figure(f"gradients apart, {what}", "relative", apart, target=CLOSE, lower_is_better=True),
    ]


def _measured(side: str, folder: Path) -> list[float]:
    command = [sys.executable, "-m", __name__, side, str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_here(side: str, folder: Path) -> list[float]:
    """Steps in this process: median milliseconds of the processor, and megabytes added. Keeps the gradients' values."""
    sizes, given = PRESETS[SHORT.preset], problem(SHORT)
    hypotheses, weights = given.tokens.tolist(), np.ones(len(given.tokens), np.float32)
    if side == "executorch":
        runtime = Runtime(1)  # torch is loaded before the memory is looked at
        before = peak_megabytes()
        source = folder / BUCKET.file
        method = runtime.load(source.read_bytes(), str(source), training_shapes(sizes, BUCKET))
        parameters = [given.weights[name] for name in sizes.constant_shapes() | sizes.parameter_shapes()]

        def step() -> list[Float]:
            feeds = utterance_feeds(sizes, given.features, hypotheses, weights, None, 0.0)
            inputs = [*padded(feeds, sizes.subsampling_factor, BUCKET).values(), *parameters]
            return [each.numpy() for each in method(*(method.tensor(each) for each in inputs))[2:]]
    else:
        before = peak_megabytes()
        session = TrainingSession(graph=(folder / "training.onnx").read_bytes(), architecture=sizes)

        def step() -> list[Float]:
            return list(session.run(given.weights, given.features, hypotheses, weights).gradients.values())

    times = []
    for _ in range(STEPS + 1):
        begin = time.process_time()
        gradients = step()
        times.append(time.process_time() - begin)
    np.save(folder / f"{side}.npy", np.concatenate([gradient.ravel() for gradient in gradients]))
    return [1e3 * statistics.median(times[1:]), peak_megabytes() - before]


if __name__ == "__main__":
    print(json.dumps(measure_here(sys.argv[1], Path(sys.argv[2]))))
