"""ExecuTorch beside onnxruntime on the same weights, audio and steps, one thread: speed, cold start, memory, agreement.

ExecuTorch is measured through its Python bindings, as the SDK runs it: its cold start and memory are mostly torch's,
which an app in C++, Kotlin or Swift does not load; of local steps, memory is therefore what loading and running the
program add. Local steps are in a bucket of the utterance's size."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure
from device_sdk.bundle import PRESETS, Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.features import logmel
from device_sdk.runtimes.executorch import Bucket, ExecutorchTransducer
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.protocol import Transducer
from export.benchmarks.decode import speech
from export.benchmarks.learn import SHORT, SIDES, in_turns, problem
from export.benchmarks.stages import UNIT, encode, over, run_session, speeds
from export.benchmarks.start import OURS, starts
from export.executorch import TrainingStep, export_executorch
from export.executorch.training import training_example
from export.executorch.writer import lower

RUNS = 5
PEER = "onnxruntime"
CLOSE, CLOSE_GRADIENTS = 1e-2, 1e-3

Float = NDArray[np.float32]


def benchmark() -> list[Figure]:
    """Medians of the encoder alone, beam 8 end to end, cold start, agreement of hypotheses, and local steps."""
    bundle, clips = Bundle.open(), speech()
    with TemporaryDirectory(prefix="idiolect-runtimes-") as folder:
        programs = export_executorch(bundle, Path(folder) / "executorch")
        ours, peer = ExecutorchTransducer(programs, bundle), OnnxTransducer(bundle)
        figures = _speeds(bundle, ours, peer, clips)
        loaded = "from device_sdk.runtimes.executorch import ExecutorchTransducer; bundle = Bundle.open(); "
        session = f"session = Recognizer(bundle, transducer=ExecutorchTransducer({str(programs)!r}, bundle))"
        way = f"from device_sdk import Bundle, Recognizer; {loaded}{session}.session(16_000)"
        begun = starts({PEER: OURS, "executorch": way})
    named = (("import to first partial", "s"), ("import to first partial", "s of CPU"), ("peak memory then", "MB"))
    for (what, unit), own, other in zip(named, begun["executorch"], begun[PEER], strict=True):
        figures.append(Figure(f"{what}, ExecuTorch", unit, own, PEER, other))
    return figures + _agreement(bundle, ours, peer, clips) + training_figures()


def _speeds(bundle: Bundle, ours: Transducer, peer: Transducer, clips: list[Float]) -> list[Figure]:
    features, ways = [logmel(clip, bundle.features) for clip in clips], {}
    for side, transducer in (("ExecuTorch", ours), (PEER, peer)):
        recognizer = Recognizer(bundle, DecodingSettings(beam=8, nbest=8), transducer=transducer)
        ways[f"encoder, 300 ms at a time, {side}"] = over(features, partial(encode, transducer))
        ways[f"beam 8, 8-best, {side}"] = over(clips, partial(run_session, recognizer))
    speed = speeds(ways, clips, RUNS)
    return [
        Figure(f"{what}, ExecuTorch", UNIT, speed[f"{what}, ExecuTorch"], PEER, speed[f"{what}, {PEER}"])
        for what in ("encoder, 300 ms at a time", "beam 8, 8-best")
    ]


def _agreement(bundle: Bundle, ours: Transducer, peer: Transducer, clips: list[Float]) -> list[Figure]:
    found, expected = (Recognizer(bundle, transducer=transducer) for transducer in (ours, peer))
    pairs = [(found.recognize(clip, 16_000).nbest[0], expected.recognize(clip, 16_000).nbest[0]) for clip in clips]
    same = [abs(one.score - other.score) for one, other in pairs if one.tokens == other.tokens]
    return [
        Figure("clips with the same best hypothesis", "share", len(same) / len(pairs), target=1.0),
        Figure("largest difference of its score", "nats", max(same, default=0.0), target=CLOSE, lower_is_better=True),
    ]


def training_figures() -> list[Figure]:
    """Time and memory of a local step, size of the program, and the relative difference of gradients."""
    sizes = PRESETS[SHORT.preset]
    bucket = Bucket(frames=SHORT.frames, tokens=SHORT.tokens, hypotheses=SHORT.hypotheses)
    with TemporaryDirectory(prefix="idiolect-executorch-") as name:
        folder, program = Path(name), lower(TrainingStep(sizes), *training_example(sizes, bucket))
        (folder / bucket.file).write_bytes(program)
        ours, peer = in_turns([("executorch", SHORT), (PEER, SHORT)], folder)
        gradients = [SIDES[side](problem(SHORT), SHORT, folder)() for side in ("executorch", PEER)]
    own, other = (np.concatenate([each.ravel() for each in one.values()], dtype=np.float64) for one in gradients)
    apart, what = float(np.linalg.norm(own - other) / np.linalg.norm(other)), f"ExecuTorch ({SHORT})"
    return [
        Figure(f"local step, {what}", "ms of CPU", ours.milliseconds, PEER, peer.milliseconds, lower_is_better=True),
        Figure(f"memory of steps, {what}", "MB", ours.added, PEER, peer.added, lower_is_better=True),
        Figure(f"program, {what}", "kB", len(program) / 1e3, lower_is_better=True),
        Figure(f"gradients apart, {what}", "relative", apart, target=CLOSE_GRADIENTS, lower_is_better=True),
    ]
