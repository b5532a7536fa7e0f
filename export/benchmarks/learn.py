"""A local gradient step on plain onnxruntime against the same step in torch eager, one thread each.

Both sides do the same step (forward, backward, SGD) on the same numbers, each in a process of its own, in turns, so
that peak memory is a side's own; time is the processor's. torch uses the project's RNN-T loss, which is faster and
leaner than autograd through a tensor of T x U x V. Several hypotheses share nothing; ``top`` is over int8 layers."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure, alternate
from device_sdk.bundle.architecture import PRESETS, Subset, frozen_file, frozen_part, training_file
from device_sdk.peak_memory import peak_bytes

RATE = np.float32(1e-3)

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """What a step is taken on. frames: stacked ones; tokens: of each of ``hypotheses``; steps: to time."""

    preset: str
    frames: int
    tokens: int
    hypotheses: int = 1
    subset: Subset = "whole"
    steps: int = 7

    def __str__(self) -> str:
        return f"{self.preset}, {self.subset}, T={self.frames}, U={self.tokens}, N={self.hypotheses}"


SHORT, LONG, SEVERAL = Case("bench", 200, 20), Case("bench", 600, 60, steps=5), Case("bench", 200, 20, 4)
PAPER, TOP = Case("paper", 200, 20, steps=2), Case("paper", 200, 20, subset="top", steps=2)
TURNS = 3


@dataclass(frozen=True, slots=True)
class Measurement:
    """One side's step. milliseconds: of the processor, median; megabytes: peak resident memory of its process; added:
    what of it loading and stepping took."""

    milliseconds: float
    megabytes: float
    added: float


def benchmark(bundle: Path | None = None) -> list[Figure]:
    """Time and peak memory of a step over torch's, and over our own where less is done. bundle: an imported one, all of
    its subsets."""
    if bundle is not None:
        from export.benchmarks.learn_imported import figures as imported

        return imported(bundle)
    with TemporaryDirectory(prefix="idiolect-learn-") as name:
        folder = Path(name)
        ours, peer = {}, {}
        for case in (SHORT, LONG):
            ours[case], peer[case] = in_turns([("onnxruntime", case), ("torch", case)], folder)
        several = [("onnxruntime", SEVERAL), ("torch", SEVERAL), ("onnxruntime", SHORT)]
        ours[SEVERAL], peer[SEVERAL], one = in_turns(several, folder)
        paper = [("onnxruntime", PAPER), ("torch", PAPER), ("onnxruntime", TOP)]
        ours[PAPER], peer[PAPER], ours[TOP] = in_turns(paper, folder)
    figures = []
    compared = [
        (SHORT, "torch eager", peer[SHORT], 0.85, 0.45),
        (LONG, "torch eager", peer[LONG], 0.85, 0.45),
        (SEVERAL, "torch eager", peer[SEVERAL], None, None),
        (PAPER, "torch eager", peer[PAPER], 0.85, None),
        (SEVERAL, "one hypothesis", one, 2.2, None),
        (TOP, "the whole model's step", ours[PAPER], 0.55, None),
    ]
    for case, name, other, fast, lean in compared:
        found = ours[case]
        figures += [
            Figure(f"local step ({case})", "ms of CPU", found.milliseconds, name, other.milliseconds, fast, True),
            Figure(f"peak memory ({case})", "MB", found.megabytes, name, other.megabytes, lean, True),
        ]
    return figures


def in_turns(sides: list[tuple[str, Case]], folder: Path) -> list[Measurement]:
    """The median of each side over turns in which every side comes once."""
    for _, case in sides:
        _write_graphs(case, folder)
    turns = [[_measure(side, case, folder) for side, case in sides] for _ in range(TURNS)]
    return [
        Measurement(*map(statistics.median, zip(*map(astuple, runs), strict=True))) for runs in zip(*turns, strict=True)
    ]


def _write_graphs(case: Case, folder: Path) -> None:
    from export.graphs import frozen_layers, training

    architecture = PRESETS[case.preset]
    graphs = {training_file(case.subset): training(architecture, case.subset)}
    if layers := frozen_part(architecture, case.subset):
        graphs[frozen_file(case.subset)] = frozen_layers(architecture, layers)
    for name, graph in graphs.items():
        (folder / f"{case.preset}.{name}").write_bytes(graph)


def _measure(side: str, case: Case, folder: Path) -> Measurement:
    command = [sys.executable, "-m", __name__, side, json.dumps(asdict(case)), str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True, slots=True)
class Problem:
    """weights: by name; features: [3 T, M]; tokens: [N, U] int64."""

    weights: Mapping[str, Float]
    features: Float
    tokens: NDArray[np.int64]


def problem(case: Case) -> Problem:
    """Seeded weights and one utterance with as many hypotheses as the case has, which share no prefix."""
    architecture, rng = PRESETS[case.preset], np.random.default_rng(0)
    shapes = architecture.parameter_shapes() | architecture.constant_shapes()
    weights = {name: np.float32(0.06) * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    length = case.frames * architecture.subsampling_factor
    features = rng.standard_normal((length, architecture.mel_bins), np.float32)
    return Problem(weights, features, rng.integers(1, architecture.pieces, (case.hypotheses, case.tokens)))


def onnxruntime_step(problem: Problem, case: Case, folder: Path) -> Callable[[], Mapping[str, Float]]:
    """Ours: a function that takes one step, in place, and returns the gradients."""
    from device_sdk.runtimes.training import FrozenLayers, TrainingSession

    architecture, layers = PRESETS[case.preset], frozen_part(PRESETS[case.preset], case.subset)
    graph = (folder / f"{case.preset}.{training_file(case.subset)}").read_bytes()
    path = folder / f"{case.preset}.{frozen_file(case.subset)}"
    beneath = FrozenLayers(path.read_bytes(), str(path), architecture, layers) if layers else None
    session = TrainingSession(graph=graph, architecture=architecture, beneath=beneath)
    hypotheses, share = problem.tokens.tolist(), np.full(case.hypotheses, 1.0 / case.hypotheses)

    def step() -> Mapping[str, Float]:
        return _descended(problem, session.run(problem.weights, problem.features, hypotheses, share).gradients)

    return step


def executorch_step(problem: Problem, case: Case, folder: Path) -> Callable[[], Mapping[str, Float]]:
    """The same by the ExecuTorch program of a bucket of the case's size."""
    from device_sdk.runtimes.executorch.bindings import Runtime
    from device_sdk.runtimes.executorch.manifest import Bucket, training_shapes
    from device_sdk.runtimes.executorch.training import pad
    from device_sdk.runtimes.protocol import utterance_feeds

    sizes, bucket = PRESETS[case.preset], Bucket(frames=case.frames, tokens=case.tokens, hypotheses=case.hypotheses)
    source = folder / bucket.file
    method = Runtime(1).load(source.read_bytes(), str(source), training_shapes(sizes, bucket))
    names, weights = sizes.constant_shapes() | sizes.parameter_shapes(), np.ones(case.hypotheses, np.float32)

    def step() -> Mapping[str, Float]:
        feeds = utterance_feeds(sizes, problem.features, problem.tokens.tolist(), weights, None, 0.0)
        inputs = [*pad(feeds, sizes.subsampling_factor, bucket).values(), *(problem.weights[name] for name in names)]
        found = (each.numpy() for each in method(*(method.tensor(each) for each in inputs))[2:])
        return _descended(problem, dict(zip(sizes.parameter_shapes(), found, strict=True)))

    return step


def _descended(problem: Problem, gradients: Mapping[str, Float]) -> Mapping[str, Float]:
    for name, gradient in gradients.items():
        np.subtract(problem.weights[name], RATE * gradient, out=problem.weights[name])
    return gradients


def torch_step(problem: Problem, case: Case, _: Path) -> Callable[[], Any]:
    """The peer: a function that takes one step and returns the network."""
    import torch

    from export.losses.rnnt import rnnt_loss
    from export.networks.rnnt import RNNT

    torch.set_num_threads(1)
    network = RNNT(PRESETS[case.preset]).from_parameters(problem.weights)
    for name, value in network.named_parameters():
        value.requires_grad_("bias_hh" not in name)  # torch's second bias would take the merged one's step twice
    trainable = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=float(RATE))
    features, tokens = torch.from_numpy(problem.features)[None], torch.from_numpy(problem.tokens)
    frames, lengths = torch.full((case.hypotheses,), case.frames), torch.full((case.hypotheses,), case.tokens)

    def step() -> RNNT:
        optimizer.zero_grad()
        encoded, output = network.encode(features).expand(case.hypotheses, -1, -1), network.joiner_output
        losses = rnnt_loss(encoded, network.predict(tokens), output.weight, output.bias, tokens, frames, lengths)
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return network

    return step


SIDES: Mapping[str, Callable[[Problem, Case, Path], Callable[[], Any]]]
SIDES = {"onnxruntime": onnxruntime_step, "torch": torch_step, "executorch": executorch_step}


def measure_here(side: str, case: Case, folder: Path) -> dict[str, float]:
    """Take steps in this process; the fields of a :class:`Measurement`."""
    given = problem(case)
    if side == "executorch":
        import torch  # noqa: F401  (its bindings' alone: loaded before the memory is looked at)
    before = peak_bytes() / 2**20
    spent = alternate({side: SIDES[side](given, case, folder)}, case.steps)[side]
    return {"milliseconds": 1e3 * spent, "megabytes": peak_bytes() / 2**20, "added": peak_bytes() / 2**20 - before}


if __name__ == "__main__":
    print(json.dumps(measure_here(sys.argv[1], Case(**json.loads(sys.argv[2])), Path(sys.argv[3]))))
