"""The walks that docs/architecture.md describes, run and traced: prints each as JSON, {name: [files, calls back]}.

A walk passes the files whose functions run; a file should not call back into its caller's."""

import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import numpy as np

from device_sdk import SAMPLE_AUDIO, Device
from device_sdk.audio.files import given_audio
from tests.architecture.sources import PACKAGES, ROOT

FOLDERS = tuple(f"{ROOT / package}/" for package in PACKAGES)


@dataclass(slots=True)
class Walk:
    """files: of the project, as first entered. back: (file, file that it calls and that calls back into it)."""

    files: list[str] = field(default_factory=list)
    back: set[tuple[str, str]] = field(default_factory=set)


class Tracer:
    """Watches the project's Python in this thread and in threads that begin from now on; not compiled modules."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        threading.setprofile(self._trace)
        sys.setprofile(self._trace)

    @contextmanager
    def walk(self) -> Iterator[Walk]:
        """What runs within the block."""
        self._walk = walk = Walk()
        yield walk
        self._walk = None

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> None:
        walk, path = self._walk, frame.f_code.co_filename
        if walk is None or event != "call" or not path.startswith(FOLDERS) or frame.f_code.co_name == "<module>":
            return
        file, callers = _relative(path), _callers(frame)
        if file not in walk.files:
            walk.files.append(file)
        if file in callers[1:]:
            walk.back.add((file, callers[0]))


def _callers(frame: FrameType) -> list[str]:
    """Files of the project on the stack above a frame, the nearest first, each time in a row once, without its own."""
    paths = (above.f_code.co_filename for above, _ in walk_stack(frame))
    return [file for file, _ in groupby(_relative(path) for path in paths if path.startswith(FOLDERS))][1:]


def _relative(path: str) -> str:
    return path.removeprefix(f"{ROOT}/")


DELTA = {"encoder.0.W": np.full((8, 6), 0.01, np.float32), "joiner.output.bias": np.full(5, 0.01, np.float32)}


def listening(tracer: Tracer) -> Walk:
    """A device's session with a hotword: from ``feed`` to the n-best list."""
    samples, rate = given_audio(SAMPLE_AUDIO, None)
    with tempfile.TemporaryDirectory() as folder, Device.open(folder, key=bytes(32)) as device:
        session = device.session(rate, hotwords=["mocha"])
        with tracer.walk() as walk:
            for start in range(0, len(samples), rate // 10):
                session.feed(samples[start : start + rate // 10])
            session.finish()
    return walk


def reporting(tracer: Tracer) -> tuple[Walk, Walk]:
    """A delta over HTTP until it is stored; the round's closing until its weights, noised by the server, are out."""
    from starlette.testclient import TestClient

    from server.app import create_app
    from tests.server.parties import Operator, Party, initial, settings

    with tempfile.TemporaryDirectory() as folder:
        quiet = settings(Path(folder), tick_seconds=3600.0)  # the loop that moves rounds would be traced, too
        with TestClient(create_app(quiet, initial())) as http:
            operator, device = Operator(http), Party(http).enrol()
            plan = {"deltas": {"clip_norm": 1.0}, "goal": 5, "weighting": "uniform", "noise_multiplier": 1.0}
            round_id = operator.open(marginals=None, **plan)
            version = operator.get("status")["model_version"]
            with tracer.walk() as stored:
                answer = device.send_delta(round_id, DELTA, model_version=version)
            assert answer.status_code == 200, answer.text
            with tracer.walk() as published:
                done = operator.close(round_id)
            assert done["state"] == "published", done
    return stored, published


def main() -> None:
    tracer = Tracer()
    stored, published = reporting(tracer)
    walks = {"audio": listening(tracer), "report": stored, "release": published}
    print(json.dumps({name: [walk.files, sorted(walk.back)] for name, walk in walks.items()}))


if __name__ == "__main__":
    main()
