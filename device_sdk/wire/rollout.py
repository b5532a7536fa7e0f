"""Who gets a new model first: a share of the devices, which both sides know without asking each other.

A device's place for a version is u, the first 48 bits of SHA-256("{version} {device_id}") as a fraction: uniform in
[0, 1), and another one for every version. The rollout is u < share; the control, as many devices that keep what they
have and are compared with it, is share <= u < 2 share. A share is a whole number of millionths: what is signed has no
fractions."""

from hashlib import sha256
from typing import Literal

MILLIONTHS = 1_000_000

Arm = Literal["rollout", "control", "rest"]


def place(device_id: str, version: str) -> float:
    """u in [0, 1)."""
    return int.from_bytes(sha256(f"{version} {device_id}".encode()).digest()[:6], "big") / (1 << 48)


def millionths(share: float) -> int:
    """A share in [0, 1] as it is signed."""
    return round(share * MILLIONTHS)


def arm_of(device_id: str, version: str, share: float) -> Arm:
    """share: of the devices that get ``version`` first, in [0, 1]."""
    share, where = millionths(share) / MILLIONTHS, place(device_id, version)
    return "rollout" if where < share else "control" if where < 2 * share else "rest"
