"""A fleet that uploads through kills: every report is sent, the same bytes again and again, until its receipt comes.

Every report owns one bucket: a word of the list, or a value of the model. So a released count above 1 proves double
counting, and one below proves loss. Now and then a report that was acknowledged long ago is sent once more.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException

import httpx
import numpy as np

from device_sdk.wire.messages import FIXED_POINT, Receipt
from server.rounds.reports import id_of_report
from tests.server.chaos.server_process import ServerProcess
from tests.server.parties import NO_NOISE, Operator, Party

__all__ = ["DELTA", "Fleet", "Plan"]

DELTA = 0.25
PATIENCE = 300.0


@dataclass(frozen=True)
class Plan:
    """devices: each sends counts and a delta, every round. kills: of the server, spread over all uploads, every tenth
    while it starts. repeats: the chance that an upload is followed by an old one."""

    devices: int
    rounds: int
    kills: int
    senders: int = 4
    repeats: float = 0.03
    seed: int = 0

    @property
    def uploads(self) -> int:
        return 2 * self.devices * self.rounds


@dataclass(frozen=True)
class Sent:
    device: Party
    path: str
    round_id: str
    body: bytes


@dataclass
class Fleet:
    """Owns the senders. acknowledged: ids of reports; repeated: how many old ones were sent again."""

    server: ServerProcess
    plan: Plan
    acknowledged: set[str] = field(default_factory=set)
    old: list[Sent] = field(default_factory=list)
    rounds: list[str] = field(default_factory=list)
    kills: int = 0
    repeated: int = 0
    failures: list[BaseException] = field(default_factory=list)
    devices: list[Party] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Every round to its publication. Raises the first failure of a sender."""
        plan, dice = self.plan, random.Random(self.plan.seed)
        with httpx.Client(timeout=60) as http:
            self.devices = [Party(http, self.server.url).enrol() for _ in range(plan.devices)]
            plans = {"marginals": {"epsilon": NO_NOISE}, "deltas": {}, "weighting": "uniform", "rounds": plan.rounds}
            Operator(http, self.server.url).open(**plans, goal=plan.devices, minimum=plan.devices)
            for number in range(plan.rounds):
                round_id = self._opened(http, number)
                work = deque((kind, device) for kind in ("marginals", "deltas") for device in range(plan.devices))
                dice.shuffle(work)
                senders = [
                    threading.Thread(target=self._send, args=(round_id, work, random.Random(dice.random())))
                    for _ in range(plan.senders)
                ]
                for sender in senders:
                    sender.start()
                self._kill_until(plan.uploads * (number + 1) // plan.rounds, senders, dice)
                for sender in senders:
                    sender.join()
                if self.failures:
                    raise self.failures[0]

            self._published(http, self.rounds[-1])

    def _opened(self, http: httpx.Client, number: int) -> str:
        """The id of the round of that number, once it is open: the one before has been published."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                found = Operator(http, self.server.url).get("status")
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            for entry in found["rounds"]:
                if entry["state"] == "open" and entry["number"] == number + 1:
                    self.rounds.append(entry["id"])
                    self.versions[entry["id"]] = entry["base_model"]
                    return str(entry["id"])
            time.sleep(0.02)
        raise AssertionError(f"round {number + 1} did not open")

    def _published(self, http: httpx.Client, round_id: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while Operator(http, self.server.url).get(f"rounds/{round_id}")["state"] != "published":
            assert time.monotonic() < deadline, "the last round was not published"
            time.sleep(0.05)

    def _kill_until(self, target: int, senders: list[threading.Thread], dice: random.Random) -> None:
        """Kill the server at its share of the uploads until so many are acknowledged."""
        plan = self.plan
        while self.kills < plan.kills and (due := plan.uploads * (self.kills + 1) // plan.kills) <= target:
            while len(self.acknowledged) < due:
                if not any(sender.is_alive() for sender in senders) and len(self.acknowledged) < due:
                    return  # a sender has failed
                time.sleep(0.001)
            time.sleep(dice.random() * 0.03)  # the last of a round falls on its aggregation
            self.server.kill()
            self.kills += 1
            if self.kills % 10 == 9 and self.kills < plan.kills:
                self.server.spawn()
                time.sleep(dice.random() * 2.0)
                self.server.kill()
                self.kills += 1
            self.server.start()

    def _send(self, round_id: str, work: deque[tuple[str, int]], dice: random.Random) -> None:
        try:
            line = Line(self.server)
            while not self.failures:
                try:
                    kind, number = work.popleft()
                except IndexError:
                    return
                sent = self._report(round_id, kind, number)
                self.acknowledged.add(id_of_report(sent.device.id, self._receipt(line, sent).report_id))
                if dice.random() < self.plan.repeats:
                    self.old.append(sent)
                    assert self._receipt(line, dice.choice(self.old)).duplicate
                    self.repeated += 1
        except BaseException as error:
            self.failures.append(error)

    def _report(self, round_id: str, kind: str, number: int) -> Sent:
        device = self.devices[number]
        if kind == "marginals":
            body = device.counts(round_id, {number: FIXED_POINT})
        else:
            values = np.zeros(self.plan.devices, np.float32)
            values[number] = DELTA
            body = device.delta(round_id, {"w": values}, model_version=self.versions[round_id])
        return Sent(device, f"/v1/rounds/{round_id}/{kind}", round_id, body)

    def _receipt(self, line: Line, sent: Sent) -> Receipt:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            headers = sent.device.headers("POST", sent.path, sent.round_id, sent.body)
            try:
                status, answer = line.post(sent.path, sent.body, headers)
            except (OSError, HTTPException):
                time.sleep(0.02)
                continue
            assert status == 200, answer
            return Receipt.model_validate_json(answer)
        raise AssertionError("no receipt in time")


class Line:
    """One sender's connection, made anew where the server is."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self._url, self._connection = "", HTTPConnection("127.0.0.1")

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._url != self.server.url:
            self._connection.close()
            self._url = self.server.url
            self._connection = HTTPConnection(self._url.removeprefix("http://"), timeout=60)
        try:
            self._connection.request("POST", path, body, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            raise
