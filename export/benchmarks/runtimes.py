"""ExecuTorch beside onnxruntime on the same weights and audio, one thread: speed, cold start, and how far they agree.

ExecuTorch is measured through its Python bindings, as the SDK runs it: its cold start and memory are mostly torch's,
which an app in C++, Kotlin or Swift does not load. Speed is by the processor's time, which other work on the machine
changes less than the clock's; cold starts are processes of their own, from the first import to the first partial of one
second of speech, with a warm file cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time

import numpy as np
from numpy.typing import NDArray

from device_sdk.audio import SAMPLE_RATE
from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from device_sdk.decoding import DecodingSettings, Recognizer
from device_sdk.features import logmel
from device_sdk.runtimes.executorch import ExecutorchTransducer
from device_sdk.runtimes.onnxruntime import OnnxTransducer
from device_sdk.runtimes.protocol import Transducer
from export.benchmarks.decode import speech
from export.benchmarks.executorch_training import training_figures
from export.executorch import export_executorch

__all__ = ["benchmark"]

RUNS = 5
CHUNK_FRAMES = 30
PEER = "onnxruntime"
UNIT = "s of audio/s of CPU"
CLOSE = 1e-2

Float = NDArray[np.float32]

_WAYS = {
    "onnxruntime": "recognizer = Recognizer(bundle)",
    "executorch": (
        "from device_sdk.runtimes.executorch import ExecutorchTransducer; "
        "recognizer = Recognizer(bundle, transducer=ExecutorchTransducer(sys.argv[2], bundle))"
    ),
}
_CHILD = """
import time
begin, before = time.perf_counter(), time.process_time()
import sys
from device_sdk import Bundle, Recognizer
bundle = Bundle.open(sys.argv[1])
{way}
import numpy
recognizer.session(16_000).feed(numpy.fromfile(sys.argv[3], numpy.float32))
clock, processor = time.perf_counter() - begin, time.process_time() - before
import json, resource
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)
if sys.platform == "linux":  # where that one counts the process that started this one, too
    peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
print(json.dumps([clock, processor, peak]))
"""


def benchmark() -> list[Figure]:
    """The encoder alone, beam 8 end to end, the cold start, the agreement of the best hypotheses, and local steps;
    medians."""
    bundle, clips = _bundle(), speech()
    with TemporaryDirectory(prefix="idiolect-runtimes-") as folder:
        programs = export_executorch(bundle, Path(folder) / "executorch")
        ours, peer = ExecutorchTransducer(programs, bundle), OnnxTransducer(bundle)
        figures = _speeds(bundle, ours, peer, clips)
        figures += _starts(bundle, programs, clips[0], Path(folder) / "clip")
        return figures + _agreement(bundle, ours, peer, clips) + training_figures()


def _bundle() -> Bundle:
    return Bundle.open()


def _speeds(bundle: Bundle, ours: Transducer, peer: Transducer, clips: list[Float]) -> list[Figure]:
    features = [logmel(clip, bundle.features) for clip in clips]
    seconds = sum(map(len, clips)) / SAMPLE_RATE
    settings = DecodingSettings(beam=8, nbest=8)
    ways: dict[tuple[str, bool], Callable[[], object]] = {}
    for own, transducer in ((True, ours), (False, peer)):
        recognizer = Recognizer(bundle, settings, transducer=transducer)
        ways["encoder, 300 ms at a time", own] = partial(_encode, transducer, features)
        ways["beam 8, 8-best", own] = partial(_decode, recognizer, clips)
    times: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
    for turn in range(RUNS + 1):
        for way, run in ways.items():
            begin = process_time()
            run()
            if turn:  # the first one warms up
                times[way].append(process_time() - begin)
    speed = {way: seconds / median(found) for way, found in times.items()}
    return [
        Figure(f"{what}, ExecuTorch", UNIT, speed[what, True], PEER, speed[what, False]) for what, own in ways if own
    ]


def _encode(transducer: Transducer, features: list[Float]) -> None:
    factor = transducer.architecture.subsampling_factor
    for frames in features:
        state = None
        for at in range(0, len(frames), CHUNK_FRAMES):
            chunk = frames[at : at + CHUNK_FRAMES]
            _, state = transducer.encode(chunk[: len(chunk) - len(chunk) % factor], state)


def _decode(recognizer: Recognizer, clips: list[Float]) -> None:
    for clip in clips:
        recognizer.recognize(clip, 16_000)


def _starts(bundle: Bundle, programs: Path, clip: Float, file: Path) -> list[Figure]:
    clip[:SAMPLE_RATE].tofile(file)
    found: dict[str, list[list[float]]] = {way: [] for way in _WAYS}
    for turn in range(RUNS + 1):
        for way, code in _WAYS.items():
            command = [sys.executable, "-c", _CHILD.format(way=code), str(bundle.path), str(programs), str(file)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            if turn:
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
    ours, peer = ([median(values) for values in zip(*found[way], strict=True)] for way in ("executorch", PEER))
    named = (("import to first partial", "s"), ("import to first partial", "s of CPU"), ("peak memory then", "MB"))
    return [
        Figure(f"{what}, ExecuTorch", unit, own, PEER, other)
        for (what, unit), own, other in zip(named, ours, peer, strict=True)
    ]


def _agreement(bundle: Bundle, ours: Transducer, peer: Transducer, clips: list[Float]) -> list[Figure]:
    found, expected = (Recognizer(bundle, transducer=transducer) for transducer in (ours, peer))
    pairs = [(found.recognize(clip, 16_000).nbest[0], expected.recognize(clip, 16_000).nbest[0]) for clip in clips]
    same = [abs(one.score - other.score) for one, other in pairs if one.tokens == other.tokens]
    return [
        Figure("clips with the same best hypothesis", "share", len(same) / len(pairs), target=1.0),
        Figure("largest difference of its score", "nats", max(same, default=0.0), target=CLOSE, lower_is_better=True),
    ]
