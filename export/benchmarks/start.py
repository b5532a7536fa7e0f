"""Cold start: a new process, from its first import to the first partial of one second of speech.

Each start is a process of its own, the ways in turns. The file cache is warm: the disk is not what is measured. The
processor's time stands beside the clock's, since other work on the machine changes it less."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from device_sdk.audio import SAMPLE_RATE
from device_sdk.benchmarks import Figure
from device_sdk.runtimes.native_kernels import native_module
from export.benchmarks.decode import shipped_speech

RUNS = 7
SECONDS, MEGABYTES = 0.6, 120.0

OURS = "from device_sdk import Bundle, Recognizer; session = Recognizer(Bundle.open()).session(16_000)"
_WAYS = {
    "Recognizer": OURS,
    "Recognizer, int8": OURS.replace("open()", "open(), precision='int8'"),
    "Device": "from device_sdk import Device; session = Device.open(sys.argv[2], key=bytes(32)).session(16_000)",
}
_CHILD = """
import time
begin, before = time.perf_counter(), time.process_time()
import sys
{way}
import numpy
partial = session.feed(numpy.fromfile(sys.argv[1], numpy.float32))
clock, processor = time.perf_counter() - begin, time.process_time() - before
import json
from device_sdk.peak_memory import peak_bytes
print(json.dumps([clock, processor, peak_bytes() / 2**20]))"""


def benchmark() -> list[Figure]:
    """Seconds and peak resident memory of each way to start; medians. And which native kernels this processor has."""
    figures = []
    for way, (clock, processor, peak) in starts(_WAYS).items():
        figures += [
            Figure(f"import to first partial, {way}", "s", clock, target=SECONDS, lower_is_better=True),
            Figure(f"import to first partial, {way}", "s of CPU", processor, target=SECONDS, lower_is_better=True),
            Figure(f"peak memory at the first partial, {way}", "MB", peak, target=MEGABYTES, lower_is_better=True),
        ]
    level = getattr(native_module(), "LEVEL", 0)  # 0: the graphs run in the place of kernels that are not here
    return [*figures, Figure("native kernels: 2 float32 and int8, 1 float32, 0 none", "level", float(level))]


def starts(ways: Mapping[str, str]) -> dict[str, list[float]]:
    """Seconds by the clock and by the processor, and peak MB of each way, code that makes ``session``; medians. It may
    use a folder of its own, ``sys.argv[2]``."""
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    with TemporaryDirectory(prefix="idiolect-start-") as folder:
        clip = Path(folder) / "clip"
        shipped_speech()[-1][:SAMPLE_RATE].tofile(clip)
        for run in range(RUNS + 1):
            for way, code in ways.items():
                command = [sys.executable, "-c", _CHILD.format(way=code), str(clip), f"{folder}/state-{way}-{run}"]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                if run:  # the first one warms the file cache up
                    found[way].append(json.loads(done.stdout.splitlines()[-1]))
    return {way: [median(values) for values in zip(*runs, strict=True)] for way, runs in found.items()}
