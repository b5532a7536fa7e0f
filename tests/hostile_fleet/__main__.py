"""``python -m tests.hostile_fleet --minutes 20``: fifty honest devices live through what hostile ones, kills, a
backup and a restore do to their server. Exit status 1 when a line does not hold."""

import json
import logging
import math
import operator
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import cycle, pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from device_sdk import Bundle, CheckInError, DeviceSettings, OfferBounds, RepetitionSettings
from server.operators.client import OperatorClient
from server.plans.round import UNDERWAY, RoundSettings
from tests.hostile_fleet.honest import WEIGHT, HonestFleet
from tests.hostile_fleet.judge import (
    Books,
    Readiness,
    counted_once,
    read_books,
    spent_reports,
    unreleased,
    wrong_seconds,
)
from tests.hostile_fleet.process import OperatedServer
from tests.server.parties import OPERATOR
from tests.tiny import write_tiny_bundle

HONEST, LATE = 50, 5
"""Honest devices from the start, and those that join after the backup, whom a restored server does not know."""
STAGE_SECONDS = 10.0
LITTLE_NOISE = {"epsilon": 2e5, "max_weight": WEIGHT}
"""Counts of ``WEIGHT`` stand far out of the noise of all these devices: none, one and two can be told apart."""
IN_GROUPS = {"trust": "distributed", "mechanism": "discrete_gaussian", "delta": 1e-6, "minimum_survivors": 2}
GROUPS = {"size": 10, "stage_seconds": STAGE_SECONDS}
PLANS: tuple[dict[str, Any], ...] = (
    {"marginals": LITTLE_NOISE, "words": {}, "seconds": 8.0, "no_privacy": True},
    {
        "marginals": LITTLE_NOISE | IN_GROUPS,
        "words": {},
        "seconds": 25.0,
        "minimum": 2,
        "groups": GROUPS,
        "no_privacy": True,
    },
)
"""Rounds in turn: counts that the server sees, of however few devices (of a last one, too, that comes late), and counts
that it gets the sum of."""
OPTIONS = ("--retry-after", "1", "--device-rate", "20:600", "--words-cap", "inf")
PATIENCE = 60.0
SETTINGS = DeviceSettings(
    learn=False,
    share_deltas=False,
    share_words=False,
    bounds=OfferBounds(max_weight=WEIGHT, marginals_epsilon=math.inf),
    repetition=RepetitionSettings(similarity=2.0),
)
"""What these devices' app allows. No utterance is taken for the one before, said again."""
HOLDS = {"=": operator.eq, "<=": operator.le, ">=": operator.ge}


def open_rounds(url: str, stopping: threading.Event) -> None:
    """The operator: one round after the other, of each plan in turn."""
    plans = cycle(PLANS)
    with OperatorClient(url, OPERATOR, timeout=30) as client:
        while not stopping.wait(1.0):
            with suppress(CheckInError):
                if not client.status().rounds:
                    client.create_round(RoundSettings.model_validate(next(plans)))


def live(folder: Path, seconds: float, progress: Console) -> dict[str, Any]:
    """One run in ``folder``: its lines, what else was seen, and whether all lines hold."""
    bundle_path = write_tiny_bundle(folder / "bundle")
    bundle, dice, begun = Bundle.open(bundle_path), random.Random(0), time.monotonic()
    server = OperatedServer(folder / "server", bundle_path, *OPTIONS)
    server.start()
    fleet = HonestFleet(folder / "devices", bundle, server.url, SETTINGS)
    fleet.grow(HONEST)
    readiness, stopping = Readiness(server, PATIENCE + 4 * STAGE_SECONDS), threading.Event()
    rounds = threading.Thread(target=open_rounds, args=(server.url, stopping), daemon=True)
    command = [sys.executable, "-m", "tests.hostile_fleet.attackers", server.url, str(bundle_path)]
    with (folder / "attackers.log").open("wb") as log:
        attackers = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    fleet.start()
    rounds.start()
    kills, lost, archive = 0, Books({}, {}, {}), folder / "backup.tar"
    due = {"save": begun + 0.4 * seconds, "lose": begun + 0.55 * seconds}
    next_kill = begun + 30.0
    try:
        while time.monotonic() < begun + seconds and not fleet.errors:
            time.sleep(0.5)
            now = time.monotonic()
            if now >= due.get("save", math.inf):
                del due["save"]
                server.save(archive)
                fleet.grow(LATE)
                progress.print(f"{now - begun:5.0f} s  saved; {LATE} more devices join")
            elif now >= due.get("lose", math.inf):
                del due["lose"]
                lost = read_books(server.lose() / server.database.name)
                server.command("restore", str(archive), "--database", str(server.database), "--json")
                server.start()
                progress.print(f"{now - begun:5.0f} s  lost and restored, with {len(lost.states)} rounds so far")
            elif now >= next_kill:
                server.stop(signal.SIGKILL)
                kills += 1
                server.start()
                next_kill = time.monotonic() + dice.uniform(30.0, 90.0)
                progress.print(f"{now - begun:5.0f} s  killed and started again")
        assert not fleet.errors, fleet.errors[0]
        until = time.monotonic()
        answer, _ = attackers.communicate(timeout=30)
        quiet = fleet.quiet(180.0)
        stopping.set()
        rounds.join()
        _finish(server)
        readiness.close()
        waiting = 0 if quiet else sum(not each.idle for each in fleet.members)
        names = {each.word: each.name(server.url) for each in fleet.members}
        fleet.close()
        status = server.stop()
    finally:
        attackers.kill()
        fleet.speaking = False
        readiness.stopping.set()
        stopping.set()
        server.stop(signal.SIGKILL)
    books, members = read_books(server.database), fleet.members
    found = counted_once(members, names, bundle.words.words, (lost, books))
    released = {**lost.released, **books.released}
    twice = [name for name in lost.drawn if name in books.drawn and (lost.drawn[name] != books.drawn[name]).any()]
    outside = unreleased(members, names, books, lost)
    charged = spent_reports(server.database, names.values())
    short = [each for each in members if charged[names[each.word]] < sum(name in released for name in each.counted)]
    gaps = sorted(max(b - a for a, b in pairwise([each.begun, *each.successes, until])) for each in members)
    successes = sorted(moment for each in members for moment in each.successes)
    ready, unready = wrong_seconds(readiness.samples, successes)
    unfinished = [state for state in books.states.values() if state in UNDERWAY]
    lines = [
        _line("honest reports that a published release lacks", found["lost"], "=", 0),
        _line("honest reports that are counted twice", found["twice"] + found["unsaid"], "=", 0),
        _line("honest reports that are counted once", found["once"], ">=", HONEST),
        _line("rounds that were drawn a second time", len(twice), "=", 0),
        _line("honest reports whose round ended without a release, but for the loss of the server", outside, "=", 0),
        _line("honest devices whose ledger is below what was released", len(short), "=", 0),
        _line("longest time for which an honest device was shut out, s", gaps[-1], "<=", 60.0),
        _line("longest time for which readyz said ready and was wrong, s", ready, "<=", 60.0),
        _line("longest time for which readyz did not say ready and was wrong, s", unready, "<=", 60.0),
        _line("honest devices that wait for an answer in the end", waiting, "=", 0),
        _line("rounds that are not over in the end", len(unfinished), "=", 0),
        _line("exit status of the server", -1 if status is None else status, "=", 0),
    ]
    figures = {
        "seconds": round(time.monotonic() - begun, 1),
        "kills": kills,
        "check-ins": len(successes),
        "rounds": Counter(books.states.values()),
        "rounds of the lost server": Counter(lost.states.values()),
        "reports": found,
        "reports of which no server can tell": sum(len(each.unsure) for each in members),
        "median of the longest gaps, s": round(gaps[len(gaps) // 2], 1),
        "server's memory at most, MB": round(server.peak_bytes / 1e6),
        "failures of honest check-ins": dict(sum((each.failures for each in members), Counter()).most_common(12)),
        "refusals of honest reports": dict(sum((each.refused for each in members), Counter()).most_common(12)),
        "attacks": json.loads(answer or b"{}"),
    }
    return {"lines": lines, "figures": figures, "holds": all(line["holds"] for line in lines)}


def _line(name: str, found: float, sign: str, target: float) -> dict[str, Any]:
    """One line of the outcome. found: the figure; target: what it must be."""
    return {"name": name, "found": round(found, 1), "target": f"{sign} {target:g}", "holds": HOLDS[sign](found, target)}


def _finish(server: OperatedServer, seconds: float = 120.0) -> None:
    """Close the round that is open, and wait until all are over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (left := server.operator.status().rounds):
        for each in left:
            if each.state == "open":
                server.operator.close_round(each.id)
        time.sleep(0.5)


def main(
    minutes: Annotated[float, typer.Option(help="How long the attack lasts.", min=0.5)] = 20.0,
    keep: Annotated[Path | None, typer.Option(help="Keep databases and logs in this folder.")] = None,
) -> None:
    """Fifty honest devices beside hostile ones. Prints JSON."""
    logging.getLogger("idiolect").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="hostile-fleet-") as name:
        outcome = live(keep or Path(name), 60.0 * minutes, Console(stderr=True))
    print(json.dumps(outcome, indent=2))
    for line in outcome["lines"]:
        if not line["holds"]:
            print(f"does not hold: {line['name']}: found {line['found']}, expected {line['target']}", file=sys.stderr)
    raise typer.Exit(0 if outcome["holds"] else 1)


if __name__ == "__main__":
    typer.run(main)
