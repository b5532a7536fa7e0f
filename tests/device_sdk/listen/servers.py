"""``idiolect listen`` in a process of its own, as people run it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.architecture.sources import ROOT


@dataclass(frozen=True)
class Server:
    """http, wyoming: where."""

    process: subprocess.Popen[str]
    http: str
    wyoming: str

    @property
    def port(self) -> int:
        return int(urlsplit(self.wyoming).port or 0)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)


@contextmanager
def listening(state: Path, *options: str, bundle: Path | None = None) -> Iterator[Server]:
    """Everything is served, at free ports."""
    command = [
        sys.executable,
        "-m",
        "device_sdk.cli",
        "listen",
        "--state",
        str(state),
        "--port",
        "0",
        "--page",
        "--openai",
    ]
    if "--no-wyoming" in options:
        options = tuple(each for each in options if each != "--no-wyoming")
    else:
        command += ["--wyoming", "tcp://127.0.0.1:0"]
    command += [*options, *(() if bundle is None else ("--bundle", str(bundle)))]
    own = {**os.environ, "IDIOLECT_STATE_KEY": "11" * 32, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=ROOT, env=own, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        assert line, "it ended before it was ready"
        told = json.loads(line)
        yield Server(process, told["http"], told.get("wyoming", ""))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
