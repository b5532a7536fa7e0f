"""``idiolect listen`` with eight clients that speak at the pace of speech, beside sherpa-onnx's streaming server with
the same weights; and hours of silence and noise.

Latency is from the end of the audio to the text. Both servers are processes of their own, with clients in this one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_sdk.benchmarks import Figure
from device_sdk.bundle import Bundle
from export.benchmarks.decode import speech
from export.sherpa import export_sherpa

CLIENTS, EACH = 8, 6
RATE, CHUNK = 16_000, 640  # samples: 40 ms
FAST = 0.150  # seconds, 95 % of texts
HOURS = 6.0
LEAN = 10.0  # megabytes more after them
PEER = "sherpa-onnx's server"
SERVER = "sherpa-onnx-online-websocket-server"

Waveform = NDArray[np.float32]


def benchmark() -> list[Figure]:
    """Seconds from the end of audio to its text, learning off and on; memory and processor time of hours of nothing."""
    clips = speech()
    with TemporaryDirectory(prefix="idiolect-listen-") as name:
        folder = Path(name)
        with _sherpa(folder) as url:
            theirs = _latencies(asyncio.run(_everybody(clips, url, ours=False, feedback=False)))
        figures = list[Figure]()
        for learning in (False, True):
            with _ours(folder / str(learning), learning) as (url, _):
                found = _latencies(asyncio.run(_everybody(clips, url, ours=True, feedback=learning)))
            what = f"{CLIENTS} clients, learning {'on' if learning else 'off'}"
            figures += [
                Figure(f"end of audio to text, 95 % of them ({what})", "s", found[1], None, None, FAST, True),
                Figure(f"the same, half of them ({what})", "s", found[0]),
                Figure(f"the same, 95 % ({what})", "s", found[1], PEER, theirs[1], None if learning else 1.0, True),
            ]
        with _ours(folder / "hours", False) as (url, process):
            figures += asyncio.run(_hours(url, process))
    return figures


def _latencies(seconds: list[float]) -> tuple[float, float]:
    half, most = np.percentile(seconds, [50, 95])
    return float(half), float(most)


@contextmanager
def _ours(state: Path, learning: bool) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "device_sdk.cli", "listen", "--state", str(state), "--port", "0"]
    command += ["--requests-a-minute", "100000", *([] if learning else ["--no-learn"])]
    with _process(command) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["http"].replace("http", "ws", 1), process


@contextmanager
def _sherpa(folder: Path) -> Iterator[str]:
    import socket

    model = export_sherpa(Bundle.open(), folder / "sherpa")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    names = [f"--{part}={model / part}.onnx" for part in ("encoder", "decoder", "joiner")]
    command = [
        str(Path(sys.executable).with_name(SERVER)),
        f"--port={port}",
        f"--tokens={model / 'tokens.txt'}",
        *names,
    ]
    command += ["--decoding-method=modified_beam_search", "--max-active-paths=8", "--num-work-threads=2"]
    command += ["--num-threads=1", f"--log-file={folder / 'sherpa.log'}"]
    with _process(command):
        for _ in range(300):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.1)
        yield f"ws://127.0.0.1:{port}"


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    own = {**os.environ, "IDIOLECT_STATE_KEY": "11" * 32, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=own, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


async def _everybody(clips: list[Waveform], url: str, *, ours: bool, feedback: bool) -> list[float]:
    talks = (_talk(clips, url, number, ours, feedback) for number in range(CLIENTS))
    return [seconds for each in await asyncio.gather(*talks) for seconds in each]


async def _talk(clips: list[Waveform], url: str, number: int, ours: bool, feedback: bool) -> list[float]:
    """One client's sentences, each at the pace of speech."""
    from websockets.asyncio.client import connect

    generator, found = np.random.default_rng(number), list[float]()
    for turn in range(EACH):
        await asyncio.sleep(float(generator.uniform(0.0, 1.0)))
        clip = clips[(number + turn) % len(clips)]
        async with connect(f"{url}/v1/listen?rate={RATE}&person=client{number}" if ours else url) as socket:
            begin = time.monotonic()
            for at in range(0, len(clip), CHUNK):
                await asyncio.sleep(max(0.0, begin + at / RATE - time.monotonic()))
                part = clip[at : at + CHUNK]
                await socket.send((part * 32767).astype("<i2").tobytes() if ours else part.astype("<f4").tobytes())
            await asyncio.sleep(max(0.0, begin + len(clip) / RATE - time.monotonic()))
            end = time.monotonic()
            await socket.send(json.dumps({"end": True}) if ours else "Done")
            result: dict[str, Any] = {}
            async for message in socket:
                if not ours and message == "Done!":
                    break
                told = json.loads(message)
                if ours and told["type"] == "result":
                    result = told
                if ours and told["type"] == "end":
                    break
            found.append(time.monotonic() - end)
            if feedback and result:
                said = {"id": result["id"], "text": result["nbest"][min(1, len(result["nbest"]) - 1)]["text"]}
                await socket.send(json.dumps({"feedback": said}))
                await socket.recv()
    return found


async def _hours(url: str, process: subprocess.Popen[str]) -> list[Figure]:
    """Silence, hiss and clicks, as fast as they are heard."""
    from websockets.asyncio.client import connect

    generator, chunk = np.random.default_rng(0), 10 * RATE
    async with connect(f"{url}/v1/listen?rate={RATE}&person=nobody") as socket:

        async def send(seconds: float) -> None:
            for _ in range(round(seconds * RATE / chunk)):
                level = generator.choice([0.0, 1.0, 30.0, 300.0])
                noise = generator.normal(0.0, 1.0, chunk) * level
                noise[generator.integers(0, chunk, 3)] = 8_000.0
                await socket.send(noise.astype("<i2").tobytes())
            await socket.send(json.dumps({"end": True}))
            async for message in socket:
                if json.loads(message)["type"] == "end":
                    return

        await send(600.0)
        before, began = _resident(process.pid), _spent(process.pid)
        for _ in range(round(6 * HOURS)):
            await send(600.0)
        after, spent = _resident(process.pid), _spent(process.pid) - began
    share = spent / (3600.0 * HOURS)
    return [
        Figure(f"memory after {HOURS:g} hours of nothing", "MB more", after - before, None, None, LEAN, True),
        Figure("processor time of nothing", "s/s", share),
    ]


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def _spent(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
