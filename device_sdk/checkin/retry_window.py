"""When a server wants this device back: kept over restarts, and pushed back while it cannot be reached."""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING, Any

from device_sdk.checkin.identity import server_name
from device_sdk.checks import reading

if TYPE_CHECKING:
    from device_sdk.state import Store

LONGEST = 6 * 3600.0
"""Of the pauses after check-ins that failed, seconds."""
FARTHEST = 7 * 24 * 3600.0
"""Seconds for which a server may send a device away."""
_FIRST = 60.0
_TABLE, _NAME = "settings", "due"


def remaining(store: Store, url: str, now: float) -> float:
    """Seconds until the server wants this device, 0 where it is due or was never there. now: since the epoch. A clock
    that was set back makes the wait begin again, and never longer than it was told to be."""
    held = _read(store).get(server_name(url))
    if held is None:
        return 0.0
    asked_at, seconds = float(held["at"]), float(held["seconds"])
    return max(0.0, min(seconds, asked_at + seconds - now))


def note_answer(store: Store, url: str, seconds: float, now: float) -> None:
    """The server wants the device back after so many ``seconds``, of which a week counts at most."""
    _write(store, url, {"at": now, "seconds": min(FARTHEST, max(0.0, seconds)), "failures": 0})


def note_failure(store: Store, url: str, now: float) -> None:
    """The server could not be reached, or was too busy: each time in a row the pause is twice as long, and a random
    share of it, so that devices which lost their server together do not come back together."""
    failures = int(_read(store).get(server_name(url), {}).get("failures", 0))
    pause = min(LONGEST, _FIRST * 2.0 ** min(failures, 16))
    _write(store, url, {"at": now, "seconds": random.uniform(pause / 2, pause), "failures": failures + 1})


def _write(store: Store, url: str, entry: dict[str, float]) -> None:
    store.put(_TABLE, _NAME, json.dumps(_read(store) | {server_name(url): entry}).encode())


def _read(store: Store) -> dict[str, Any]:
    content = store.get(_TABLE, _NAME)
    with reading(f"{_TABLE}/{_NAME}"):
        held: dict[str, Any] = {} if content is None else json.loads(content)
        for entry in held.values():
            if not (math.isfinite(entry["at"]) and math.isfinite(entry["seconds"]) and entry["failures"] >= 0):
                raise ValueError("found a time that is not finite")
        return held
