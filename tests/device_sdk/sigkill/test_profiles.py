"""The device of several users killed at any point: every user's state opens, counters never go back, and forgetting one
user is whole or not at all and costs no other anything."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from device_sdk import Bundle, Profiles
from tests.device_sdk.sigkill.nursery import KEY, SETTINGS, USERS, Order, figures, lives

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and waits for processes by descriptor")


def campaign(folder: Path, bundle: Bundle, kills: int, seed: int) -> Counter[str]:
    """Returns how each ended."""
    last: dict[str, dict[str, Any]] = {}
    order, points = Order(str(folder), str(bundle.path), "", 8, True, shared=True), Counter[str]()
    for told in lives(order, kills, seed, points):
        last = _check(folder, bundle, told, last)
    return points


def _check(state: Path, bundle: Bundle, told: list[Any], last: dict[str, Any]) -> dict[str, dict[str, Any]]:
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
        before, forgetting, found = last.get(user), False, now.get(user)
        for each in (each for each in told if each.get("user") == user):
            forgetting = each["what"] == "forgetting"
            before = before if forgetting else None if each["what"] == "forgot" else each
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
    assert 60 <= campaign(tmp_path / "kills", tiny_bundle, 200, seed=6)["a moment"] <= 140
