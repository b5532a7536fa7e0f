"""The noise of a round's sum, drawn once, and what the ledger says of it."""

from __future__ import annotations

import hashlib
import hmac
import math
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from device_sdk.errors import PrivacyError
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.settings import EngineSettings, Privacy
from server.lab.simulation.engine.state import State
from server.privacy.charges import Charge
from server.privacy.composition import Spent, compose

__all__ = ["charge", "noised", "spent"]

_GRID = 1024
"""Grid steps to one standard deviation, as in what devices add: low-order bits then tell nothing."""


def noised(total: Arrays, stddev: float, key: bytes, number: int) -> Arrays:
    """``total`` with Gaussian noise of standard deviation ``stddev`` on every value.

    The stream is bound to the run's secret key, the round's number and the bytes of ``total``: the same inputs give the
    same release, and no two different inputs share noise. PrivacyError: stddev that is not a number of 0 or more.
    """
    if not (math.isfinite(stddev) and stddev >= 0):
        raise PrivacyError(f"noise: found a standard deviation of {stddev}, expected a number >= 0")
    if stddev == 0:
        return total
    digest = hashlib.sha256()
    for name in sorted(total):
        digest.update(name.encode() + b"\0" + np.ascontiguousarray(total[name], "<f4").tobytes())
    own = hmac.new(key, number.to_bytes(8, "little") + digest.digest(), hashlib.sha256).digest()
    stream = Cipher(algorithms.ChaCha20(own, bytes(16)), mode=None).encryptor()
    grid = 2.0 ** math.floor(math.log2(stddev / _GRID))
    found = {}
    for name in sorted(total):
        values = total[name]
        noise = stddev * _gaussian(stream.update(bytes(16 * ((values.size + 1) // 2))), values.size)
        found[name] = np.asarray(
            np.round((values.astype(np.float64) + noise.reshape(values.shape)) / grid) * grid, np.float32
        )
    return found


def _gaussian(content: bytes, count: int) -> NDArray[np.float64]:
    """Standard normal values from uniform bytes, by Box and Muller over 53-bit uniforms that never are 0.

    Cosine and sine of an angle come from the tangent of its half, which numpy computes ten times as fast as them.
    """
    bits = np.frombuffer(content, "<u8").reshape(2, -1) >> np.uint64(11)
    uniform = bits.astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-53
    radius = np.sqrt(-2.0 * np.log(uniform[0]))
    half = np.tan(math.pi * (uniform[1] - 0.5))
    square = half * half
    radius /= 1.0 + square
    return np.concatenate((radius * (1.0 - square), radius * (half + half)))[:count]


def charge(privacy: Privacy | None) -> Charge:
    """One accepted report in the ledger's terms."""
    if privacy is None or privacy.noise_multiplier == 0:
        return Charge("none", "none", 0.0 if privacy is None else privacy.clip_norm, 0.0, unbounded=True)
    z = privacy.noise_multiplier
    return Charge("gaussian", "central", privacy.clip_norm, z * privacy.clip_norm, squared_ratio=z**-2)


def spent(settings: EngineSettings, state: State) -> dict[str, Any]:
    """Epsilon of the user who reported most often, as the live ledger composes it: every accepted report in full."""
    privacy, most = settings.privacy, int(state.accepted.max(initial=0))
    delta = 0.0 if privacy is None else privacy.delta
    epsilon = compose(Spent({charge(privacy): most}), delta)[0] if most else 0.0
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else "Infinity",
        "delta": delta,
        "reports": most,
        "rounds": state.number,
        "adjacency": "user: one client's deltas replaced by zero, composed over its rounds",
        "sampling": "none: every accepted report is charged in full",
        "trust_model": "central: whoever runs the simulation sees clipped deltas and adds the noise",
    }
