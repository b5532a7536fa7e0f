"""Taking reports in: a real server process over HTTP on SQLite, every report on disk before its receipt is sent.

The same is measured with durability off (no fsync by the database or for blobs), and beside it the disk alone: so many
small appends, or so many files of a delta's size, it makes durable one after another. A delta is a megabyte of float32;
a report of counts holds 20 words. Requests are made and signed beforehand; senders and server share the machine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection
from pathlib import Path
from secrets import token_hex
from statistics import median
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from safetensors.numpy import save
from sqlalchemy import insert

from device_sdk.benchmarks import Figure
from device_sdk.errors import IdiolectError
from device_sdk.wire.messages import FIXED_POINT
from device_sdk.wire.signing import BODY_DIGEST, DEVICE, NONCE, SIGNATURE, TIMESTAMP, signed_digest
from server.rate_limit import Rate
from server.registry.initial import InitialModel
from server.settings import Rates, ServerSettings
from server.storage import blobs, database
from server.storage.schema import devices

__all__ = ["benchmark", "measure", "serve"]

VALUES, WORDS, COUNTED = 1 << 18, 2000, 20
DELTAS, COUNTS, REPEATS, SENDERS = 60, 300, 3, 4
DISK_SECONDS = 1.0
TOKEN = "ingest-benchmark"
DIGEST = "d" * 64


@dataclass(frozen=True, slots=True)
class Upload:
    """One signed request."""

    path: str
    body: bytes
    headers: dict[str, str]


class Device:
    """A device's key and id."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = sha256(self.public).hexdigest()[:32]

    def signed(self, path: str, round_id: str, body: bytes) -> Upload:
        nonce, stamp = token_hex(12), int(time.time())
        digest = sha256(body).hexdigest()
        signature = b64encode(self.key.sign(signed_digest("POST", path, round_id, digest, nonce, stamp))).decode()
        headers = {DEVICE: self.id, BODY_DIGEST: digest, NONCE: nonce, TIMESTAMP: str(stamp), SIGNATURE: signature}
        return Upload(path, body, headers)

    def delta(self, round_id: str, tensors: dict[str, np.ndarray]) -> Upload:
        header = {"model_version": "base", **self._named(round_id)}
        body = save(tensors, metadata={"header": json.dumps(header)})
        return self.signed(f"/v1/rounds/{round_id}/deltas", round_id, body)

    def counts(self, round_id: str) -> Upload:
        counts = {str(word): FIXED_POINT for word in range(COUNTED)}
        body = json.dumps({"words_digest": DIGEST, "counts": counts, **self._named(round_id)}).encode()
        return self.signed(f"/v1/rounds/{round_id}/marginals", round_id, body)

    def _named(self, round_id: str) -> dict[str, str | int]:
        return {"report_id": token_hex(8), "device_id": self.id, "round_id": round_id, "utterances": 1}


def benchmark() -> list[Figure]:
    """Uploads a second, of deltas and of counts."""
    with tempfile.TemporaryDirectory(prefix="ingest-", dir=Path.cwd()) as name:
        folder = Path(name)
        durable, fast = measure(folder / "durable", durable=True), measure(folder / "fast", durable=False)
        files, appends = _files(folder), _appends(folder)
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
    rng = np.random.default_rng(0)
    tensors = {"w": rng.normal(scale=1e-4, size=VALUES).astype(np.float32)}
    found: dict[str, list[float]] = {"deltas": [], "marginals": []}
    with _served(folder, durable) as address:
        for _ in range(REPEATS):
            round_id = _operate(address, "", {"settings": {"deltas": {}, "weighting": "uniform"}})["id"]
            found["marginals"].append(_rate(address, [device.counts(round_id) for device in fleet[:COUNTS]]))
            found["deltas"].append(_rate(address, [device.delta(round_id, tensors) for device in fleet[:DELTAS]]))
            _operate(address, f"/{round_id}/abandon", {})
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


@contextmanager
def _served(folder: Path, durable: bool) -> Iterator[str]:
    """The address of a server process over a folder."""
    code = f"from pathlib import Path; from server.lab.benchmarks.ingest import serve; serve(Path({str(folder)!r}), "
    log, ready = folder / "server.log", folder / "ready.json"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{code}durable={durable})"],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=output,
            stderr=output,
        )
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise IdiolectError(f"the server ended with {process.returncode}: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        yield str(json.loads(ready.read_text())["url"]).removeprefix("http://")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _operate(address: str, path: str, content: dict[str, object]) -> dict[str, str]:
    connection = HTTPConnection(address, timeout=60)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    connection.request("POST", f"/v1/operator/rounds{path}", json.dumps(content), headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    if answer.status >= 300:
        raise IdiolectError(f"rounds{path}: {answer.status} {body[:500]!r}")
    return dict(json.loads(body))


def _rate(address: str, uploads: list[Upload]) -> float:
    """Uploads a second, over a few connections that stay open."""
    work, failures = deque(uploads), list[str]()

    def send() -> None:
        connection = HTTPConnection(address, timeout=60)
        while not failures:
            try:
                upload = work.popleft()
            except IndexError:
                break
            connection.request("POST", upload.path, upload.body, upload.headers)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                failures.append(f"{upload.path}: {answer.status} {body[:500]!r}")
        connection.close()

    senders = [threading.Thread(target=send) for _ in range(SENDERS)]
    began = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    spent = time.perf_counter() - began
    if failures or work:
        raise IdiolectError(failures[0] if failures else "a sender stopped; is the server gone?")
    return len(uploads) / spent


def _appends(folder: Path) -> float:
    """Appends of 4 kB a second, each synced."""
    with (folder / "appended").open("wb", buffering=0) as file:
        began, done = time.perf_counter(), 0
        while time.perf_counter() - began < DISK_SECONDS:
            file.write(bytes(4096))
            os.fsync(file.fileno())
            done += 1
        return done / (time.perf_counter() - began)


def _files(folder: Path) -> float:
    """Files of a delta's size a second, each synced, without their folder."""
    content = bytes(4 * VALUES)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < DISK_SECONDS:
        with (folder / f"file-{done}").open("wb", buffering=0) as file:
            file.write(content)
            os.fsync(file.fileno())
        done += 1
    return done / (time.perf_counter() - began)
