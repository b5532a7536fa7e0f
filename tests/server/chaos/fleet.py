"""A fleet that uploads through kills: every report is sent, the same bytes again and again, until its receipt comes.

Every report owns one bucket: a word of the list, or a value of the model. So a released count above 1 proves double
counting, and one below proves loss. Now and then a report that was acknowledged long ago is sent once more."""

import random
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from device_sdk.wire.messages import FIXED_POINT, Receipt
from server.rounds.reports import id_of_report
from tests.forks import ServerProcess
from tests.server.parties import NO_NOISE, Operator, Party, until

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
    """Owns the senders. acknowledged: ids of reports; versions: of the model, by round."""

    server: ServerProcess
    plan: Plan
    acknowledged: set[str] = field(default_factory=set)
    old: list[Sent] = field(default_factory=list)
    kills: int = 0
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
                seeds = [random.Random(dice.random()) for _ in range(plan.senders)]
                senders = [threading.Thread(target=self._send, args=(round_id, work, seed)) for seed in seeds]
                for sender in senders:
                    sender.start()
                self._kill_until(plan.uploads * (number + 1) // plan.rounds, senders, dice)
                for sender in senders:
                    sender.join()
                if self.failures:
                    raise self.failures[0]
            operator, last = Operator(http, self.server.url), list(self.versions)[-1]
            until(lambda: operator.get(f"rounds/{last}")["state"] == "published", PATIENCE)

    def _opened(self, http: httpx.Client, number: int) -> str:
        """The id of the round of that number, once it is open: the one before has been published."""

        def found() -> Any:
            with suppress(httpx.HTTPError):
                rounds = Operator(http, self.server.url).get("status")["rounds"]
                return next((row for row in rounds if row["state"] == "open" and row["number"] == number + 1), None)

        entry = until(found, PATIENCE)
        self.versions[entry["id"]] = entry["base_model"]
        return str(entry["id"])

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
            with httpx.Client(timeout=60) as line, suppress(IndexError):
                while not self.failures:
                    sent = self._report(round_id, *work.popleft())
                    self.acknowledged.add(id_of_report(sent.device.id, self._receipt(line, sent).report_id))
                    if dice.random() < self.plan.repeats:
                        self.old.append(sent)
                        assert self._receipt(line, dice.choice(self.old)).duplicate
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

    def _receipt(self, line: httpx.Client, sent: Sent) -> Receipt:
        def answered() -> Any:
            headers = sent.device.headers("POST", sent.path, sent.round_id, sent.body)
            with suppress(httpx.HTTPError):
                return line.post(self.server.url + sent.path, content=sent.body, headers=headers)

        answer = until(lambda: (found := answered()) is not None and [found], PATIENCE)[0]
        assert answer.status_code == 200, answer.text
        return Receipt.model_validate_json(answer.content)
