"""The device of several users killed at any point: every user's state opens, counters never go back, and forgetting one
user is whole or not at all and costs no other anything."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from device_sdk import Bundle, Profiles
from tests.device_sdk.sigkill.nursery import KEY, SETTINGS, USERS, Order, figures
from tests.device_sdk.sigkill.test_sigkill import Nursery

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits for processes by descriptor")

ACTIONS = 8


def campaign(folder: Path, bundle: Bundle, kills: int, seed: int) -> Counter[str]:
    """Kills ``kills`` lives over one folder, half of them at a point, half at a moment. Returns how each ended."""
    rng, known, seconds, endings = random.Random(seed), Counter[str](), 1.0, Counter[str]()
    folder.mkdir()
    state, nursery, number = folder / "state", Nursery(), 0
    last: dict[str, dict[str, Any]] = {}
    try:
        while endings.total() < kills:
            progress = folder / f"{number}.jsonl"
            progress.touch()
            point = rng.choice(sorted(known)) if number % 2 else ""
            ending = nursery.bring_up(
                Order(
                    str(state), str(bundle.path), "", str(progress), seed * 100_000 + number, ACTIONS, True, point,
                    at=rng.randint(1, known[point]) if point else 0,
                    after=0.0 if point or number == 0 else rng.uniform(0.02, 1.1 * seconds),
                    shared=True,
                )
            )  # fmt: skip
            told = [json.loads(line) for line in progress.read_text("utf-8").splitlines()]
            if ending["code"] == 0:
                known |= Counter(told[-1]["points"])
                seconds = ending["seconds"]
            else:
                assert ending["code"] == -9, told[-1:]
                endings["a point" if point else "a moment"] += 1
            last = _check(state, bundle, told, last)
            number += 1
    finally:
        nursery.close()
    return endings


def _check(
    state: Path, bundle: Bundle, told: list[dict[str, Any]], last: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Every user's state after an ending. told: by the life that ended; last: what held before it, by user."""
    now: dict[str, dict[str, Any]] = {}
    with Profiles(state, KEY, bundle, SETTINGS) as profiles:
        names = profiles.names()
        assert set(names) <= set(USERS)
        for user in names:
            now[user] = figures(profiles[user])
            assert profiles[user]._store._rows("PRAGMA integrity_check") == [("ok",)]
    assert len(list((state / "profiles").iterdir())) == len(names), "nothing is left of who was forgotten"
    for user in USERS:
        before, forgetting = last.get(user), False
        for each in (each for each in told if each.get("user") == user):
            forgetting = each["what"] == "forgetting"
            if each["what"] == "forgot":
                before = None
            elif not forgetting:
                before = each
        found = now.get(user)
        if before is None:
            continue
        if found is None or found["salt"] != before["salt"]:
            assert forgetting, "only who asked for it is forgotten"
            assert found is None or (found["utterances"], found["steps"]) == (0, 0), "and then wholly"
        else:
            assert found["utterances"] >= before["utterances"], "counters never go back"
            assert found["rollbacks"] >= before["rollbacks"]
            assert found["rollbacks"] > before["rollbacks"] or found["steps"] >= before["steps"]
    return now


def test_some_kills(tmp_path: Path, tiny_bundle: Bundle) -> None:
    assert campaign(tmp_path / "kills", tiny_bundle, 8, seed=5).total() == 8


@pytest.mark.slow
def test_many_kills(tmp_path: Path, tiny_bundle: Bundle) -> None:
    endings = campaign(tmp_path / "kills", tiny_bundle, 200, seed=6)
    assert min(endings["a point"], endings["a moment"]) >= 60
