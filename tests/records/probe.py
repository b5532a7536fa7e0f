"""``python -P probe.py OUTPUT``, in a checkout: writes what it does, as JSON. :mod:`tests.records.__main__` runs it."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import safetensors.numpy
import soundfile
import typer
from sitecustomize import restart
from typer.main import get_group

from device_sdk import (
    SAMPLE_AUDIO,
    Accepted,
    Corrected,
    Device,
    DeviceSettings,
    LearningReport,
    OfferBounds,
    Result,
    Semantics,
    SlotLexicon,
)

CLIPS = (Path(SAMPLE_AUDIO), *sorted(Path("export/benchmarks/speech").glob("*.ogg")))
HOTWORDS = ("sven", "madrid", "laundry detergent")
LEXICON = SlotLexicon({"drink": ["mocha", "latte"], "size": ["small", "large"]})
MEASURED = {"seconds", "peak_bytes"}
"""Fields of a learning report that hold what the run took."""
BOUNDS = OfferBounds(clip_norm=1e3, least_noise=0.0, deltas_epsilon=math.inf)
ROUNDS = {
    "noise of the server": "--epsilon 2 --max-words 8 --clip-norm 2 --noise-multiplier 0.002",
    "noise of the devices": "--epsilon 8 --trust local --clip-norm 2 --noise 0.0005 --encoding int8 --optimizer adam "
    "--learning-rate 0.001",
}
SHARED = "--deltas --goal 3 --minimum 2 --json"
"""Nobody sends the third report, so a round closes when it is told to, not when a thread of the server sees it."""
START_SECONDS = 120.0
PIECE = 1 << 16
"""Bytes of a download that come at once: each is sealed by itself, under a name and a nonce that are random."""

(_script,) = [point for point in entry_points(group="console_scripts") if point.name == "idiolect"]
_program: Callable[[list[str]], int] = _script.load()
_iter_raw = httpx.Response.iter_raw
httpx.Response.iter_raw = lambda answer, size=None: _iter_raw(answer, size or PIECE)  # type: ignore[method-assign]


def files() -> dict[str, Any]:
    """Whole recordings, one device for all: what it hears of one adapts it to the next."""
    with _device() as device:
        return {path.name: plain(device.recognise(path)) for path in CLIPS}


def streams(*hotwords: str) -> dict[str, Any]:
    """The same recordings in tenths of a second: every partial, and the end."""
    found: dict[str, Any] = {}
    with _device() as device:
        for path in CLIPS:
            audio, rate = _read(path)
            session = device.session(rate, hotwords=hotwords)
            partials = [session.feed(audio[start : start + rate // 10]) for start in range(0, len(audio), rate // 10)]
            found[path.name] = {"partials": plain(partials), "result": plain(session.finish())}
    return found


def learning() -> dict[str, Any]:
    """Weights after feedback: what they are, and how far from the published ones."""
    with _device() as device:
        _hear(device, CLIPS[0], lambda result: Semantics({"drink": "mocha", "size": "large"}, LEXICON))
        _hear(device, CLIPS[1], lambda result: Corrected("create my alarm for half past ten next monday"))
        report, weights, base = device.learn(), device.student.weights, device.base.weights
        deltas = {name: weights[name] - base[name] for name in sorted(weights)}
        return {"report": plain(report), "weights": plain(weights), "delta": plain(deltas)}


def published_rounds() -> dict[str, Any]:
    """Two devices and a server: what they said of rounds, what these published, and what a device makes of that."""
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(_server(folder))
        headers = {"Authorization": f"Bearer {os.environ['IDIOLECT_OPERATOR_TOKEN']}"}
        client = stack.enter_context(httpx.Client(base_url=url, headers=headers, trust_env=False))
        devices = [stack.enter_context(_device(folder / f"device-{number}", number)) for number in (1, 2)]
        for device in devices:
            device.agree("marginals", "deltas")
            device.check_in(url, os.environ["IDIOLECT_ENROLMENT_TOKEN"])
        for name, options in ROUNDS.items():
            for number, device in enumerate(devices):
                for path in CLIPS[number::2]:
                    _hear(device, path, lambda result: Accepted() if len(result.text) % 2 else Corrected(result.text))
                _hear(device, CLIPS[0], lambda result: Semantics({"drink": "latte", "size": "large"}, LEXICON))
                device.learn()
            opened = json.loads(_run("rounds", "open", *options.split(), *SHARED.split()))
            visits = [device.check_in(url) for device in devices]
            closed = json.loads(_run("rounds", "close", opened["id"], "--json"))
            visits += [device.check_in(url) for device in devices]
            found[name] = {"round": closed, "devices": plain(visits), "heard": plain(devices[0].recognise(CLIPS[0]))}
            weights = client.get(f"/v1/models/{closed['model_version']}").raise_for_status().content
            found[name]["weights"] = plain(safetensors.numpy.load(weights)) | {"file": plain(weights)}
            found[name]["marginals"] = _get(client, f"/v1/marginals/{closed['marginals_version']}")
        for name in ("privacy", "models", "marginals", "marginals/1?top=9999", "rounds", "devices", "actions"):
            found[name] = _get(client, f"/v1/operator/{name}")
    return found


def openapi() -> dict[str, Any]:
    """The interface of the server, as the command prints it."""
    found: dict[str, Any] = json.loads(_run("openapi"))
    return found


def help_pages() -> dict[str, str]:
    """What every command and subcommand says of itself."""
    paths = [(), *(path for point in sorted(entry_points(group="idiolect.commands")) for path in _paths(point))]
    return {" ".join(("idiolect", *path)): _run(*path, "--help") for path in paths}


def plain(value: Any) -> Any:
    """As JSON says it without loss; arrays and bytes by their digests. TypeError: of no known kind."""
    if is_dataclass(value):
        kept = [
            each.name for each in fields(value) if not (isinstance(value, LearningReport) and each.name in MEASURED)
        ]
        return {name: plain(getattr(value, name)) for name in kept}
    if isinstance(value, Mapping):
        return {str(name): plain(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)} sha256 {sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes sha256 {sha256(value).hexdigest()}"
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"found {type(value).__name__}, expected a dataclass, a mapping, a sequence, an array or a scalar")


@contextmanager
def _device(folder: Path | None = None, key: int = 0) -> Iterator[Device]:
    settings = DeviceSettings(bounds=BOUNDS)
    with (
        tempfile.TemporaryDirectory() as fresh,
        Device.open(folder or fresh, bytes([key] * 32), settings=settings) as device,
    ):
        yield device


def _hear(device: Device, path: Path, signal: Callable[[Result], Any]) -> None:
    result = device.recognise(path)
    device.feedback(result, signal(result))


def _get(client: httpx.Client, path: str) -> Any:
    return client.get(path).raise_for_status().json()


def _read(path: Path) -> tuple[Any, int]:
    audio, rate = soundfile.read(path, dtype="float32")
    return audio, rate


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    """The address of `idiolect serve`, with fixed tokens, which this process then has too."""
    tokens = {"IDIOLECT_ENROLMENT_TOKEN": "enrolment " * 4, "IDIOLECT_OPERATOR_TOKEN": "operator " * 4}
    os.environ |= {name: token.replace(" ", "-") for name, token in tokens.items()} | {"RECORDS_STREAM": "server"}
    ready, log = folder / "ready.json", folder / "server.log"
    code = f"import sys; from {_script.module} import {_script.attr} as main; sys.exit(main())"
    options = ["serve", "--port", "0", "--database", str(folder / "server.db"), "--ready-file", str(ready)]
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", code, *options], stdout=output, stderr=output)
    try:
        until = time.monotonic() + START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        os.environ["IDIOLECT_SERVER"] = url = json.loads(ready.read_text())["url"]
        yield url
    finally:
        process.terminate()
        process.wait()


def _run(*words: str) -> str:
    """What a command prints. RuntimeError: it fails."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = _program(list(words))
    if code:
        raise RuntimeError(f"idiolect {' '.join(words)}: exit code {code}: {errors.getvalue()}")
    return output.getvalue()


def _paths(point: EntryPoint) -> Iterator[tuple[str, ...]]:
    """The words of a command, then of every one below it."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        if hasattr(command, "list_commands"):
            context = typer.Context(command)
            for name in command.list_commands(context):
                yield from below(command.get_command(context, name), (*words, name))

    loaded = point.load()
    return below(get_group(loaded) if isinstance(loaded, typer.Typer) else loaded, (point.name,))


def _native_modules() -> list[str]:
    """Those of the checkout that were used: its records are of them. ImportError: something is not the checkout's."""
    packages = {path.parent.name for path in Path().glob("*/__init__.py")}
    loaded = [each for name, each in list(sys.modules.items()) if name.partition(".")[0] in packages]
    origins = [each.__file__ for each in loaded if getattr(each, "__file__", None)]
    if strangers := [path for path in origins if not Path(path).is_relative_to(Path.cwd())]:
        raise ImportError(f"found modules of another checkout: {', '.join(strangers)}")
    return [path for path in origins if path.endswith((".so", ".pyd"))]


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "n-best lists, whole files": files,
    "n-best lists, streams": streams,
    "n-best lists, streams with hotwords": lambda: streams(*HOTWORDS),
    "weights after learning": learning,
    "published rounds": published_rounds,
    "OpenAPI document": openapi,
    "pages of help": help_pages,
}


def main(output: Path) -> None:
    found: dict[str, Any] = {}
    for name, part in PARTS.items():
        restart(name)
        found[name] = part()
    found["native modules"] = {"count": len(_native_modules())}
    output.write_text(json.dumps(found).replace(str(Path.cwd()), "<checkout>"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
