"""A real server process, killed in the middle of a round: no accepted report is lost, none is counted twice.

Every report owns one bucket of the histogram and one value of the delta, so a bucket above 1 proves double counting
and a bucket at 0 proves loss.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

import httpx
import numpy as np

from device_sdk.wire.messages import FIXED_POINT, Receipt
from server.aggregation.weights_file import parse_weights
from server.registry.initial import InitialModel
from tests.server.parties import DIGEST, NO_NOISE, Operator, Party

DEVICES = 48
SENDERS = 3
KILLS = 3
DELTA = 0.25
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from server.commands.serve import run
from tests.server.parties import settings
from tests.server.test_sigkill import buckets
folder = Path(sys.argv[1])
run(settings(folder), buckets(), host="127.0.0.1", port=0, ready_file=folder / "ready.json")
"""


def buckets() -> InitialModel:
    """One word and one value per device."""
    weights = {"w": np.zeros(DEVICES, np.float32)}
    return InitialModel(weights, "base-1", DIGEST, np.full(DEVICES, 1 / DEVICES))


class RealServer:
    """Owns the server process; ``url`` changes whenever it starts again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready = self.folder / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-c", PROGRAM, str(self.folder)]
        self.process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert self.process.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        self.url = json.loads(ready.read_text())["url"]

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(20) == -signal.SIGKILL

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def send_until_acknowledged(server: RealServer, http: httpx.Client, device: Party, path: str, body: bytes) -> Receipt:
    """What a device does: the same bytes again and again until a receipt comes."""
    round_id = path.split("/")[3]
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            headers = device.headers("POST", path, round_id, body)
            answer = http.post(server.url + path, content=body, headers=headers)
        except httpx.HTTPError:
            time.sleep(0.02)
            continue
        assert answer.status_code == 200, answer.text
        return Receipt.model_validate_json(answer.content)
    raise AssertionError("no receipt in time")


def test_sigkill_in_the_middle_of_a_round(tmp_path: Path) -> None:
    server = RealServer(tmp_path)
    server.start()
    try:
        _run(server, tmp_path)
    finally:
        if server.process is not None:
            server.process.kill()
            server.process.wait()


def _run(server: RealServer, folder: Path) -> None:
    with httpx.Client(timeout=30) as http:
        devices = [Party(http, server.url).enrol() for _ in range(DEVICES)]
        plans = {"marginals": {"epsilon": NO_NOISE}, "deltas": {}, "weighting": "uniform"}
        round_id = Operator(http, server.url).open(**plans, goal=DEVICES, minimum=DEVICES)
        work: deque[tuple[int, str]] = deque((number, kind) for number in range(DEVICES) for kind in ("m", "d"))
        random.Random(0).shuffle(work)
        receipts: dict[tuple[int, str], Receipt] = {}

        def send() -> None:
            with httpx.Client(timeout=30) as own:
                while work:
                    number, kind = work.popleft()
                    device = devices[number]
                    if kind == "m":
                        body = device.counts(round_id, {number: FIXED_POINT})
                        path = f"/v1/rounds/{round_id}/marginals"
                    else:
                        values = np.zeros(DEVICES, np.float32)
                        values[number] = DELTA
                        body = device.delta(round_id, {"w": values})
                        path = f"/v1/rounds/{round_id}/deltas"
                    receipts[number, kind] = send_until_acknowledged(server, own, device, path, body)

        senders = [threading.Thread(target=send) for _ in range(SENDERS)]
        for sender in senders:
            sender.start()
        total = 2 * DEVICES
        for kill in range(1, KILLS + 1):
            while len(receipts) < total * kill // KILLS:  # the last kill falls on the aggregation
                assert any(sender.is_alive() for sender in senders) or len(receipts) == total
                time.sleep(0.001)
            server.kill()
            server.start()
        for sender in senders:
            sender.join(120)
        assert len(receipts) == total
        operator = Operator(http, server.url)
        deadline = time.monotonic() + 60
        while (found := operator.get(f"rounds/{round_id}"))["state"] != "published":
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        weights = parse_weights(http.get(f"{server.url}/v1/models/{found['model_version']}").content)
    assert server.stop() == 0
    assert found["reports"] == {"marginals": DEVICES, "deltas": DEVICES}
    assert np.allclose(weights["w"] * DEVICES / DELTA, 1.0, atol=1e-5)
    with sqlite3.connect(folder / "server.db") as database:
        released = database.execute("SELECT counts FROM releases WHERE stream = 'marginals'").fetchall()
        assert len(released) == 1
        assert (np.frombuffer(released[0][0], "<i8") / FIXED_POINT).tolist() == [1.0] * DEVICES
        for table, rows in (("reports", total), ("ledger", total), ("releases", 2), ("publications", 4)):
            assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (rows,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    database.close()
    assert not any(path.is_file() for path in (folder / "blobs" / "deltas").rglob("*"))
