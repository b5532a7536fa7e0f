"""``python -P probe.py OUTPUT``, in a checkout: writes what it does, as JSON. :mod:`tests.records.__main__` runs it."""

import io
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import safetensors.numpy
import soundfile
import typer
from sitecustomize import restart
from typer.main import get_group

import device_sdk as sdk

CLIPS = (Path(sdk.SAMPLE_AUDIO), *sorted(Path("export/benchmarks/speech").glob("*.ogg")))
LEXICON = sdk.SlotLexicon({"drink": ["mocha", "latte"], "size": ["small", "large"]})
BOUNDS = sdk.OfferBounds(clip_norm=1e3, least_noise=0.0, deltas_epsilon=math.inf)
SHARED = {"goal": 3, "minimum": 2, "weighting": "uniform"}
"""Nobody sends the third report, so a round closes when it is told to, not when a thread of the server sees it."""
COUNTS, LOCAL = {"epsilon": 2.0, "max_words": 8}, {"epsilon": 8.0, "trust": "local"}
NOISED = {"clip_norm": 2.0, "noise_stddev": 0.0005, "encoding": "int8"}
ADAM = {"kind": "adam", "learning_rate": 0.001}
ROUNDS: dict[str, dict[str, Any]] = {
    "noise of the server": {"marginals": COUNTS, "deltas": {"clip_norm": 2.0}, "noise_multiplier": 0.002},
    "noise of the devices": {"marginals": LOCAL, "deltas": NOISED, "optimizer": ADAM},
}
PIECE = 1 << 16
"""Bytes of a download that come at once: each is sealed by itself, under a name and a nonce that are random."""

(_script,) = [point for point in entry_points(group="console_scripts") if point.name == "idiolect"]
_program: Callable[[list[str]], int] = _script.load()
_iter_raw = httpx.Response.iter_raw
httpx.Response.iter_raw = lambda answer, size=None: _iter_raw(answer, size or PIECE)  # type: ignore[method-assign]


def lists(*hotwords: str, streamed: bool = True) -> dict[str, Any]:
    """Recordings, whole or in tenths of a second; one device for all: what it hears of one adapts it to the next."""
    found: dict[str, Any] = {}
    with _device() as device:
        for path in CLIPS:
            audio, rate = soundfile.read(path, dtype="float32")
            session, step = device.session(rate, hotwords=hotwords), rate // 10 if streamed else len(audio)
            partials = [session.feed(audio[start : start + step]) for start in range(0, len(audio), step)]
            found[path.name] = {"partials": plain(partials), "result": plain(session.finish())}
    return found


def learning() -> dict[str, Any]:
    """Weights after feedback: what they are, and how far from the published ones."""
    with _device() as device:
        report = _learn(device, CLIPS[:2])
        weights, base = device.student.weights, device.base.weights
        deltas = {name: weights[name] - base[name] for name in weights}
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
        for name, settings in ROUNDS.items():
            learned = [plain(_learn(device, CLIPS[number::2])) for number, device in enumerate(devices)]
            opened = client.post("/v1/operator/rounds", json={"settings": SHARED | settings}).raise_for_status().json()
            visits = [device.check_in(url) for device in devices]
            closed = json.loads(_run("rounds", "close", opened["id"], "--json"))
            visits += [device.check_in(url) for device in devices]
            found[name] = {"round": closed, "learned": learned, "visits": plain(visits)}
            weights = client.get(f"/v1/models/{closed['model_version']}").raise_for_status().content
            marginals = client.get(f"/v1/marginals/{closed['marginals_version']}").raise_for_status().json()
            found[name] |= {"weights": plain(safetensors.numpy.load(weights)), "file": plain(weights)}
            found[name] |= {"marginals": marginals, "heard": plain(devices[0].recognize(CLIPS[0]))}
        for name in ("privacy", "models", "marginals", "marginals/1?top=9999", "rounds", "devices", "actions"):
            found[name] = client.get(f"/v1/operator/{name}").raise_for_status().json()
    return found


def help_pages() -> dict[str, str]:
    """What every command and subcommand says of itself."""
    found = {"idiolect": _run("--help")}
    for point in sorted(entry_points(group="idiolect.commands")):
        command = point.load()
        found |= _pages(get_group(command) if isinstance(command, typer.Typer) else command, point.name)
    return found


def plain(value: Any) -> Any:
    """As JSON says it without loss; arrays and bytes by their digests."""
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(value[name]) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}{list(value.shape)} sha256 {sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes sha256 {sha256(value).hexdigest()}"
    return value


@contextmanager
def _device(folder: Path | None = None, key: int = 0) -> Iterator[sdk.Device]:
    with (
        tempfile.TemporaryDirectory() as fresh,
        sdk.Device.open(folder or fresh, bytes([key] * 32), settings=sdk.DeviceSettings(bounds=BOUNDS)) as device,
    ):
        yield device


def _learn(device: sdk.Device, clips: Sequence[Path]) -> sdk.LearningReport:
    """A local step on each of these recordings, from what its user says of it."""
    order = sdk.Semantics({"drink": "mocha", "size": "large"}, LEXICON)
    for path in clips:
        said = order if path == CLIPS[0] else sdk.Corrected(path.stem.replace("-", " "))
        device.feedback(device.recognize(path), said)
    return replace(device.learn(), seconds=0.0, peak_bytes=0)


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
        while not ready.exists():
            if process.poll() is not None:
                raise RuntimeError(f"the server did not start: {log.read_text()}")
            time.sleep(0.05)
        os.environ["IDIOLECT_SERVER"] = url = json.loads(ready.read_text())["url"]
        yield url
    finally:
        process.terminate()
        process.wait()


def _run(*words: str) -> str:
    """What a command prints. RuntimeError: it fails."""
    with redirect_stdout(io.StringIO()) as output:
        code = _program(list(words))
    if code:
        raise RuntimeError(f"idiolect {' '.join(words)}: exit code {code}")
    return output.getvalue()


def _pages(command: Any, *words: str) -> dict[str, str]:
    found = {" ".join(("idiolect", *words)): _run(*words, "--help")}
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            found |= _pages(command.get_command(context, name), *words, name)
    return found


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "n-best lists, whole files": lambda: lists(streamed=False),
    "n-best lists, streams": lists,
    "n-best lists, streams with hotwords": lambda: lists("sven", "madrid", "laundry detergent"),
    "weights after learning": learning,
    "published rounds": published_rounds,
    "OpenAPI document": lambda: json.loads(_run("openapi")),
    "pages of help": help_pages,
}


if __name__ == "__main__":
    found: dict[str, Any] = {}
    for name, part in PARTS.items():
        restart(name)
        found[name] = part()
    paths = [str(getattr(each, "__file__", "")) for each in sys.modules.values()]
    native = [path for path in paths if path.startswith(str(Path.cwd())) and path.endswith((".so", ".pyd"))]
    found["native modules"] = {"count": len(native)}
    Path(sys.argv[1]).write_text(json.dumps(found).replace(str(Path.cwd()), "<checkout>"))
