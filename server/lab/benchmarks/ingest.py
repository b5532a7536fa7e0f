"""Taking reports in: a real server process over HTTP on SQLite, every report on disk before its receipt is sent.

The same is measured with durability off (no fsync by the database or for blobs), and beside it the disk alone: so many
small appends, or so many files of a delta's size, it makes durable one after another. A delta is a megabyte of float32;
a report of counts holds 20 words. Requests are made and signed beforehand; senders and server share the machine."""

import json
import os
import tempfile
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_bytes, token_hex
from statistics import median
from typing import Any

import numpy as np
from safetensors.numpy import save
from sqlalchemy import insert

from device_sdk.benchmarks import Figure
from device_sdk.checkin.identity import Identity, signed_headers
from device_sdk.errors import IdiolectError
from device_sdk.wire.messages import FIXED_POINT
from server.lab.benchmarks.children import ONE_THREAD
from server.lab.simulation.process import ServerProcess
from server.plans.round import RoundSettings
from server.rate_limit import Rate
from server.registry.initial import InitialModel
from server.settings import Rates, ServerSettings
from server.storage import blobs, database
from server.storage.schema import devices

VALUES, WORDS, COUNTED = 1 << 18, 2000, 20
DELTAS, COUNTS, REPEATS, SENDERS = 60, 300, 3, 4
DISK_SECONDS = 1.0
TOKEN = "ingest-benchmark"
DIGEST = "d" * 64

Upload = tuple[str, bytes, dict[str, str]]
"""Path, body and headers of one signed request."""


class Device:
    """A device's key and id."""

    def __init__(self) -> None:
        self.identity = Identity(token_bytes(32), "")
        self.public = b64decode(self.identity.public_key)
        self.id = sha256(self.public).hexdigest()[:32]
        self.identity = replace(self.identity, device_id=self.id)

    def delta(self, round_id: str, tensors: dict[str, np.ndarray]) -> Upload:
        header = {"model_version": "base", **self._named(round_id)}
        return self._signed("deltas", round_id, save(tensors, metadata={"header": json.dumps(header)}))

    def counts(self, round_id: str) -> Upload:
        counts = {str(word): FIXED_POINT for word in range(COUNTED)}
        body = json.dumps({"words_digest": DIGEST, "counts": counts, **self._named(round_id)}).encode()
        return self._signed("marginals", round_id, body)

    def _signed(self, stream: str, round_id: str, body: bytes) -> Upload:
        path = f"/v1/rounds/{round_id}/{stream}"
        return path, body, signed_headers(self.identity, "POST", path, round_id, body)

    def _named(self, round_id: str) -> dict[str, str | int]:
        return {"report_id": token_hex(8), "device_id": self.id, "round_id": round_id, "utterances": 1}


def benchmark() -> list[Figure]:
    """Uploads a second, of deltas and of counts."""
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=Path.cwd()) as name:
        folder = Path(name)
        durable, fast = measure(folder / "durable", durable=True), measure(folder / "fast", durable=False)
        files, appends = _synced(folder, 4 * VALUES, appended=False), _synced(folder, 4096, appended=True)
    unit, off = "uploads/s", "durability off"
    size = f"deltas of {4 * VALUES / (1 << 20):.0f} MB"
    return [
        Figure(f"{size}, each on disk before its receipt", unit, durable["deltas"], off, fast["deltas"]),
        Figure("the same", unit, durable["deltas"], "disk: files of that size, each synced", files),
        Figure("marginals, each on disk before its receipt", unit, durable["marginals"], off, fast["marginals"]),
        Figure("the same", unit, durable["marginals"], "disk: appends of 4 kB, each synced", appends),
    ]


def measure(folder: Path, *, durable: bool) -> dict[str, float]:
    """Uploads a second of each stream, the median of a few rounds on one server."""
    folder.mkdir(parents=True)
    fleet = [Device() for _ in range(max(DELTAS, COUNTS))]
    own = database.Database(_settings(folder).database_url)
    with own.write() as connection:
        rows = [{"id": each.id, "public_key": each.public, "enrolled_at": time.time()} for each in fleet]
        connection.execute(insert(devices), rows)
    own.close()
    tensors = {"w": np.random.default_rng(0).normal(scale=1e-4, size=VALUES).astype(np.float32)}
    found: dict[str, list[float]] = {"deltas": [], "marginals": []}
    plan = RoundSettings.model_validate({"deltas": {}, "weighting": "uniform"})
    ours = f"from server.lab.benchmarks.ingest import serve; serve(Path({str(folder)!r}), durable={durable})"
    server = ServerProcess(folder, code=f"import os; os.environ.update({ONE_THREAD}); from pathlib import Path; {ours}")
    server.operator_token = TOKEN
    with server:
        address = server.url.removeprefix("http://")
        for _ in range(REPEATS):
            round_id = server.operator.create_round(plan).id
            found["marginals"].append(_rate(address, [device.counts(round_id) for device in fleet[:COUNTS]]))
            found["deltas"].append(_rate(address, [device.delta(round_id, tensors) for device in fleet[:DELTAS]]))
            server.operator.abandon_round(round_id)
    return {stream: median(rates) for stream, rates in found.items()}


def serve(folder: Path, *, durable: bool) -> None:
    """The server's process."""
    from server.serve import run

    if not durable:
        prepare = database._prepare_sqlite

        def careless(connection: Any, _record: Any) -> None:
            prepare(connection, _record)
            connection.execute("PRAGMA synchronous=OFF")

        database._prepare_sqlite = careless
        blobs.os.fsync = lambda _: None  # type: ignore[attr-defined]
    initial = InitialModel({"w": np.zeros(VALUES, np.float32)}, "base", DIGEST, np.full(WORDS, 1 / WORDS))
    run(_settings(folder), initial, host="127.0.0.1", port=0, ready_file=folder / "ready.json")


def _settings(folder: Path) -> ServerSettings:
    unlimited = Rate(per_second=1e6, burst=1e6)
    return ServerSettings(
        database=str(folder / "server.db"),
        blobs=folder / "blobs",
        enrolment_token=TOKEN,
        operator_token=TOKEN,
        rates=Rates(address=unlimited, device=unlimited),
    )


def _rate(address: str, uploads: list[Upload]) -> float:
    """Uploads a second, over a few connections that stay open."""

    def send(own: list[Upload]) -> None:
        connection = HTTPConnection(address, timeout=60)
        for path, body, headers in own:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 200:
                raise IdiolectError(f"{path}: {answer.status} {said[:500]!r}")
        connection.close()

    began = time.perf_counter()
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(send, (uploads[first::SENDERS] for first in range(SENDERS))))
    return len(uploads) / (time.perf_counter() - began)


def _synced(folder: Path, size: int, *, appended: bool) -> float:
    """Writes of ``size`` bytes a second, each synced: appended to one file, or files, without their folder."""
    content, began, done = bytes(size), time.perf_counter(), 0
    while time.perf_counter() - began < DISK_SECONDS:
        with (folder / ("appended" if appended else f"file-{done}")).open("ab", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        done += 1
    return done / (time.perf_counter() - began)
