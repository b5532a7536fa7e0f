"""The ids under which reports are stored. No message of a device can name one: a colon is no part of what it may send.

A device numbers its own reports, and whoever sees or guesses the numbers of another, or of what the server makes, must
not be able to take them.
"""

from __future__ import annotations

import json
from hashlib import sha256

__all__ = ["id_in_group", "id_of_report"]


def id_of_report(device_id: str, report_id: str) -> str:
    """Of what a device sent under an id of its own: no other device's, whatever that calls its reports. They sort by
    what devices call them: deltas are added in that order, to the same bits whatever a server calls the devices."""
    return f"report:{sha256(report_id.encode()).hexdigest()[:16]}{_own(device_id, report_id)}"


def id_in_group(device_id: str, round_id: str) -> str:
    """Of a device's part in the sum of a round's group; it has one at most."""
    return f"group:{_own(device_id, round_id)}"


def _own(device_id: str, name: str) -> str:
    return sha256(json.dumps([device_id, name]).encode()).hexdigest()[:32]
