"""A warm process that brings up devices, one child each, and kills them; and campaigns of such lives.

Standard input: one JSON order a line. Standard output: one JSON ending a line. No session is opened before the fork."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from device_sdk import Bundle, CheckInError, Client, Device, Profiles
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, SlotLexicon
from device_sdk.learning import StepSettings
from device_sdk.state.outbox import waiting
from tests.architecture.sources import ROOT
from tests.bounds import ANYTHING
from tests.device_sdk.devices import KEY, quick
from tests.device_sdk.sigkill.points import Points
from tests.server.parties import ENROLMENT
from tests.signals import chirp

SETTINGS = replace(quick(hypotheses=2, wait_seconds=0.0, step=StepSettings(learning_rate=0.02)), bounds=ANYTHING)
USERS = ("ana", "ben", "zoë")
SOUNDS = [chirp(4_000, seed) for seed in range(4)]
SIGNALS = (
    Accepted(),
    Cancelled(),
    Corrected("turn on the light in the kitchen"),
    Corrected("borborygmus"),
    Semantics({"place": "kitchen"}, SlotLexicon({"place": ("kitchen", "bedroom")})),
)


@dataclass(frozen=True)
class Order:
    """One life. actions: how many things it does; forgets: whether forgetting is among them; shared: the device of
    several users, without a server; seed: of what it does; progress: file that it writes to; point, at: where to die,
    see :class:`Points`; after: seconds to die after, 0 for never."""

    state: str
    bundle: str
    url: str
    actions: int
    forgets: bool
    shared: bool = False
    seed: int = 0
    progress: str = ""
    point: str = ""
    at: int = 0
    after: float = 0.0


def lives(order: Order, kills: int, seed: int, points: Counter[str]) -> Iterator[list[dict[str, Any]]]:
    """What each life over one state folder told, until ``kills`` were killed, half of them at a point, half at a
    moment, which ``points`` counts. Every other point is one of those that killed least, so that none is left out
    because few lives pass it."""
    rng, known, seconds, number = random.Random(seed), Counter[str](), 1.0, 0
    progress = Path(f"{order.state}.jsonl")
    command = [sys.executable, "-m", "tests.device_sdk.sigkill.nursery"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as nursery:
        while points.total() < kills:
            fewest = min((points[name] for name in known), default=0)
            names = [name for name in sorted(known) if number % 4 == 3 or points[name] == fewest]
            point, after = rng.choice(names) if number % 2 else "", rng.uniform(0.02, 1.1 * seconds)
            at, after = (rng.randint(1, known[point]), 0.0) if point else (0, after if number else 0.0)
            progress.write_bytes(b"")
            each = replace(order, seed=seed * 100_000 + number, progress=str(progress), point=point, at=at, after=after)
            nursery.stdin.write(json.dumps(asdict(each)) + "\n")
            nursery.stdin.flush()
            ending = json.loads(nursery.stdout.readline())
            told = [json.loads(line) for line in progress.read_text("utf-8").splitlines()]
            if ending["code"] == 0:  # it lived to the end: how long lives are
                known |= Counter(told[-1]["points"])
                seconds = ending["seconds"]
            else:
                assert ending["code"] == -9, told[-1:]
                points[told[-1]["point"] if point else "a moment"] += 1
            yield told
            number += 1


def life(order: Order, bundle: Bundle, tell: Callable[..., None]) -> None:
    """Does ``order.actions`` things at random, and tells of each when it is done: from then on it must not be lost."""
    rng = random.Random(order.seed)
    with Device.open(order.state, KEY, bundle, SETTINGS) as device:
        client = Client(order.url, timeout=60)
        _agree(device)
        tell("opened", device)
        kinds = ["hear", "hear", "feedback", "learn", "check in", "deltas off", "deltas on"]
        kinds += ["forget"] * 2 * order.forgets
        for _ in range(order.actions):
            kind = rng.choice(kinds)
            heard = [each.utterance_id for each in device.remembered() if not each.withheld]
            match kind:
                case "hear":
                    device.recognize(rng.choice(SOUNDS), 16_000)
                case "feedback" if heard:
                    device.feedback(rng.choice(heard), rng.choice(SIGNALS))
                case "learn":
                    device.learn()
                case "check in":
                    try:
                        device.check_in(client, ENROLMENT)
                    except CheckInError as error:
                        tell("not checked in", device, error=str(error))
                case "deltas off":
                    device.withdraw("deltas")
                case "deltas on":
                    device.agree("deltas")
                case "forget":
                    tell("forgetting", device)
                    device.forget()
                    tell("forgot", device)
                    _agree(device)
            tell(kind, device)
        client.close()


def shared_life(order: Order, bundle: Bundle, tell: Callable[..., None]) -> None:
    """As :func:`life`, of one user after another."""
    rng = random.Random(order.seed)
    with Profiles(order.state, KEY, bundle, SETTINGS) as profiles:
        for _ in range(order.actions):
            user, kind = rng.choice(USERS), rng.choice(("hear", "hear", "learn", "forget"))
            if kind == "forget":
                tell("forgetting", user=user)
                profiles.forget(user)
                tell("forgot", user=user)
                continue
            device = profiles[user]
            if kind == "hear":
                device.feedback(device.recognize(rng.choice(SOUNDS), 16_000), rng.choice(SIGNALS))
            else:
                device.learn()
            tell(kind, device, user=user)


def _agree(device: Device) -> None:
    """Before anything is heard, so that every utterance is due to be reported."""
    if not device.consent.marginals:
        device.agree("counting", "learning", "marginals", "deltas")


def _child(order: Order, bundle: Bundle) -> None:
    progress = os.open(order.progress, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(what: str, device: Device | None = None, **more: Any) -> None:
        if device is not None:
            more |= figures(device)
        os.write(progress, json.dumps({"what": what, **more}).encode() + b"\n")

    points = Points(order.point, order.at, lambda name: tell("killed", point=name))
    points.install()
    try:
        (shared_life if order.shared else life)(order, bundle, tell)
        tell("lived", points=points.passed)
    except BaseException:
        tell("failed", error=traceback.format_exc())
        raise


def figures(device: Device) -> dict[str, Any]:
    """What must never go back, and what tells two lives apart."""
    learned, store = device.learned(), device._store
    return {
        "utterances": learned.utterances,
        "steps": learned.steps,
        "rollbacks": device._model_state.watch.rollbacks,
        "model": learned.model_version,
        "marginals": learned.marginals_version,
        "vocabulary": [each.phrase for each in device.vocabulary.list()],
        "sent": [learned.marginal_reports, learned.delta_reports],
        "salt": store._rows("SELECT value FROM meta WHERE name = 'salt'")[0][0].hex(),
    }


def held(device: Device, server: str) -> dict[str, int]:
    """Reports that wait: id -> utterances whose counts they hold; deltas hold none."""
    return {
        report.report_id: json.loads(report.restore)["utterances"] if report.kind == "marginals" else 0
        for report in waiting(device._store, server)
    }


def _bring_up(order: Order, bundle: Bundle) -> dict[str, Any]:
    begun = time.monotonic()
    if not (pid := os.fork()):
        try:
            os.dup2(2, 1)
            _child(order, bundle)
            os._exit(0)
        finally:
            os._exit(1)
    if order.after:
        watch = os.pidfd_open(pid)
        select.select([watch], [], [], order.after)
        os.close(watch)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun}


def main() -> None:
    opened = cache(Bundle.open)
    for line in sys.stdin:
        order = Order(**json.loads(line))
        print(json.dumps(_bring_up(order, opened(order.bundle))), flush=True)


if __name__ == "__main__":
    main()
