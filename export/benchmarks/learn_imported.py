"""Local steps on a model that was imported, through its states, beside torch eager on the same graph and windows.

Each side runs in a process of its own, in turns, one thread: peak memory is a side's own, time is the processor's.
torch runs the bundle's own operators and keeps what autograd needs of the whole utterance; its loss is the project's,
which is leaner than autograd through a tensor of T x U x V. Low-rank factors are products of their own there."""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure, alternate
from device_sdk.bundle import Bundle
from device_sdk.bundle.architecture import FORWARD_FILE, Subset, factor_names, trainable
from device_sdk.bundle.streaming import StatelessPredictor, StreamingArchitecture, subsets_of
from device_sdk.learning.step import factorize
from device_sdk.peak_memory import peak_bytes

RANK, TURNS, STEPS = 4, 3, 2
SECONDS, LONG = 20, 60
FAST, LEAN, LONGER, OUTPUT = 1.2, 0.5, 1.5, 1.3
PIECES_A_SECOND = 3

Float = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """side: ``onnxruntime``, ``torch``, or ``alone``: forward, joint and lattice without a gradient. seconds: of
    audio."""

    side: str
    subset: Subset
    seconds: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """milliseconds: of the processor a step, median. megabytes: peak resident memory of the process."""

    milliseconds: float
    megabytes: float


def figures(path: Path) -> list[Figure]:
    """Of an imported bundle: every subset, time and peak memory of a step on 20 s of audio; and how memory grows."""
    bundle = Bundle.open(path)
    found = list[Figure]()
    for subset in subsets_of(bundle.architecture):
        peer = "alone" if subset == "output" else "torch"
        ours, theirs = _in_turns([Case("onnxruntime", subset, SECONDS), Case(peer, subset, SECONDS)], path)
        longer = _measure(Case("onnxruntime", subset, LONG), path)
        name = "forward, joint and lattice" if subset == "output" else "torch eager"
        claimed = subset in ("adapters", "norms", "whole")
        fast = OUTPUT if subset == "output" else FAST if claimed else None
        what = f"{subset}, {SECONDS} s"
        found += [
            Figure(f"local step ({what})", "ms of CPU", ours.milliseconds, name, theirs.milliseconds, fast, True),
            Figure(
                f"peak memory ({what})", "MB", ours.megabytes, name, theirs.megabytes, LEAN if claimed else None, True
            ),
            Figure(f"peak memory ({subset}, {LONG} s)", "MB", longer.megabytes, what, ours.megabytes, LONGER, True),
        ]
    return found


def _in_turns(cases: list[Case], path: Path) -> list[Measurement]:
    turns = [[_measure(case, path) for case in cases] for _ in range(TURNS)]
    return [
        Measurement(*map(statistics.median, zip(*map(astuple, runs), strict=True))) for runs in zip(*turns, strict=True)
    ]


def _measure(case: Case, path: Path) -> Measurement:
    command = [sys.executable, "-m", __name__, json.dumps(asdict(case)), str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Measurement(**json.loads(done.stdout.splitlines()[-1]))


def utterance(bundle: Bundle, seconds: int) -> tuple[Float, list[list[int]]]:
    """Features [F, M] of that length and one hypothesis, drawn."""
    sizes, generator = bundle.architecture, np.random.default_rng(0)
    features = generator.normal(-8.0, 3.0, (100 * seconds, sizes.mel_bins)).astype(np.float32)
    return features, [generator.integers(1, sizes.pieces, PIECES_A_SECOND * seconds).tolist()]


def onnxruntime_step(bundle: Bundle, case: Case) -> Callable[[], Any]:
    from device_sdk.runtimes.training import TrainingSession

    features, hypotheses = utterance(bundle, case.seconds)
    session, parameters = TrainingSession(bundle, subset=case.subset), _parameters(bundle, case.subset)
    return lambda: session.run(parameters, features, hypotheses, [1.0])


def alone_step(bundle: Bundle, case: Case) -> Callable[[], Any]:
    """What any gradient of the output's side needs before it: the encoder, joint and lattice."""
    from device_sdk.runtimes.onnxruntime import open_session
    from device_sdk.runtimes.protocol import utterance_feeds
    from device_sdk.runtimes.training import StreamingEncoder

    features, hypotheses = utterance(bundle, case.seconds)
    model = onnx.load(str(bundle.file("training.output.onnx")))
    kept = [each for each in model.graph.output if each.name == "negative_log_likelihoods"]
    del model.graph.output[:]
    model.graph.output.extend(kept)
    session = open_session(model.SerializeToString(), "alone", arena=True)
    names = [each.name for each in session.get_inputs()]
    encoder = StreamingEncoder(bundle, 1)

    def step() -> Any:
        feeds = utterance_feeds(bundle.architecture, features, hypotheses, [1.0], None, 0.0)
        given = {**bundle.weights, **feeds, **encoder.run(bundle.weights, feeds)}
        return session.run(["negative_log_likelihoods"], {name: given[name] for name in names if name in given})

    return step


def torch_step(bundle: Bundle, case: Case) -> Callable[[], Any]:
    import torch

    from device_sdk.runtimes.protocol import Windows, whole_windows
    from device_sdk.runtimes.streaming import TAIL, start_states
    from export.autodiff import prepare
    from export.benchmarks.eager import EagerGraph
    from export.losses.rnnt import rnnt_loss

    torch.set_num_threads(1)
    sizes = bundle.architecture
    assert isinstance(sizes, StreamingArchitecture)
    features, hypotheses = utterance(bundle, case.seconds)
    encoder = EagerGraph(prepare(onnx.load(str(bundle.file(FORWARD_FILE))), ()))
    values = {name: torch.from_numpy(value.copy()) for name, value in _parameters(bundle, case.subset).items()}
    moved = [each for name in trainable(sizes, case.subset) for each in _moved(name, case.subset)]
    for name in moved:
        values[name].requires_grad_()
    factored = trainable(sizes, "adapters") if case.subset == "adapters" else ()
    pairs = {name: (values[up], values[down]) for name in factored for up, down in [factor_names(name)]}
    heard = torch.from_numpy(whole_windows(Windows(sizes.window, sizes.shift, TAIL), features))
    names = [state.name for state in sizes.states]
    tokens = torch.tensor(hypotheses)
    lengths = torch.tensor([tokens.shape[1]])

    def weight(name: str) -> Any:
        if name not in pairs:
            return values[name]
        up, down = pairs[name]
        return values[name] + up @ down

    def step() -> Any:
        for name in moved:
            values[name].grad = None
        state = [torch.from_numpy(each) for each in start_states(sizes)]
        rows = []
        for at in range(0, len(heard) - sizes.window + 1, sizes.shift):
            given = {**values, **dict(zip(names, state, strict=True)), "features": heard[None, at : at + sizes.window]}
            encoded, *state = encoder(given, pairs)
            rows.append(encoded)
        encoded = torch.cat(rows, 1)
        predicted = _predicted(sizes, weight, tokens)
        output, bias = weight("joiner.output.weight"), values["joiner.output.bias"]
        frames = torch.tensor([encoded.shape[1]])
        rnnt_loss(encoded, predicted, output, bias, tokens, frames, lengths).sum().backward()  # type: ignore[no-untyped-call]
        return [values[name].grad for name in moved]

    return step


def _moved(name: str, subset: Subset) -> tuple[str, ...]:
    return factor_names(name) if subset == "adapters" else (name,)


def _predicted(sizes: StreamingArchitecture, weight: Callable[[str], Any], tokens: Any) -> Any:
    """[1, U + 1, J] of one hypothesis."""
    import torch
    from torch.nn import functional

    shape, embedding = sizes.predictor, weight("predictor.embedding")
    before = torch.cat([torch.zeros(1, 1, dtype=torch.int64), tokens], 1)
    if isinstance(shape, StatelessPredictor):
        padded = functional.pad(before, (shape.context - 1, 0), value=-1)
        said = functional.embedding(padded.clamp(min=0), embedding) * (padded >= 0).unsqueeze(-1)
        if shape.context > 1:
            groups = shape.size // shape.group
            said = functional.conv1d(said.transpose(1, 2), weight("predictor.convolution"), groups=groups).transpose(
                1, 2
            )
        said = torch.relu(said)
    else:
        said = functional.embedding(before, embedding)
        for layer in range(shape.layers):
            w, r, b = (weight(f"predictor.{layer}.{part}") for part in "WRB")
            order = [torch.cat([each[:shape.size], each[2 * shape.size : 3 * shape.size], each[3 * shape.size :],
                                each[shape.size : 2 * shape.size]]) for each in (w, r, b)]  # fmt: skip
            zero = torch.zeros(1, 1, shape.size)
            given = [*order, torch.zeros_like(order[2])]
            said = torch._VF.lstm(said, (zero, zero), given, True, 1, 0.0, False, False, True)[0]
    return said @ weight("joiner.predictor.weight").T


def _parameters(bundle: Bundle, subset: Subset) -> dict[str, Float]:
    parameters = dict(bundle.weights)
    if subset == "adapters":
        names, generator = trainable(bundle.architecture, subset), np.random.default_rng(0)
        parameters |= factorize(bundle.weights, bundle.weights, names, RANK, generator)
    return parameters


SIDES = {"onnxruntime": onnxruntime_step, "torch": torch_step, "alone": alone_step}


def _measure_here(case: Case, path: Path) -> dict[str, float]:
    step = SIDES[case.side](Bundle.open(path), case)
    spent = alternate({case.side: step}, STEPS if case.seconds == SECONDS else 1)[case.side]
    return {"milliseconds": 1e3 * spent, "megabytes": peak_bytes() / 2**20}


if __name__ == "__main__":
    print(json.dumps(_measure_here(Case(**json.loads(sys.argv[1])), Path(sys.argv[2]))))
