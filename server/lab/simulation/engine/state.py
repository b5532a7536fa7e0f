"""What one round hands to the next, and its file: safetensors with JSON in its header, whole or not at all.

The noise of a round's sum, drawn once, and what the ledger says of it."""

import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save_file

from device_sdk.commands.output import finite
from device_sdk.errors import DataError, PrivacyError
from server.aggregation import optimizers
from server.aggregation.optimizers import OptimizerState
from server.lab.simulation.engine.population import Arrays
from server.lab.simulation.engine.settings import EngineSettings, Privacy
from server.privacy.charges import Charge
from server.privacy.composition import Spent, compose

_GRID = 1024
"""Grid steps to one standard deviation, as in what devices add: low-order bits then tell nothing."""


@dataclass(frozen=True, slots=True)
class State:
    """number: rounds that are done. weights: by parameter. optimizer: the server's. accepted: reports of every client,
    int64 [population], which is what the ledger charges. key: secret of the noise, 32 bytes; every round's noise is a
    function of it and of what is noised, so a round that is resumed releases what it would have. history: figures of
    every round."""

    number: int
    weights: Arrays
    optimizer: OptimizerState
    accepted: NDArray[np.int64]
    key: bytes
    history: Sequence[Mapping[str, Any]] = ()


def store(path: Path, state: State, digest: str) -> None:
    """Write a state atomically, readable by its owner alone, since it holds the key. digest: of the settings."""
    moments, optimizer = optimizers.state_to_arrays(state.optimizer)
    arrays: dict[str, NDArray[Any]] = {f"weights.{name}": values for name, values in state.weights.items()}
    arrays |= {f"optimizer.{name}": values for name, values in moments.items()} | {"accepted": state.accepted}
    header = {
        "number": state.number,
        "optimizer": optimizer,
        "key": state.key.hex(),
        "settings_sha256": digest,
        "history": list(state.history),
    }
    temporary = path.with_name(f"{path.name}.part")
    temporary.unlink(missing_ok=True)
    temporary.touch(0o600)
    contiguous = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    save_file(contiguous, temporary, {"engine": json.dumps(header)})
    temporary.replace(path)


def load(path: Path, digest: str) -> State:
    """What :func:`store` wrote. Raises DataError for a damaged file and for one of other settings."""
    try:
        with safe_open(path, "numpy") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header: dict[str, Any] = json.loads(file.metadata()["engine"])
    except Exception as error:  # safetensors has no common error type
        raise DataError(f"{path}: not a readable state ({error}); delete it to begin again") from error
    if header["settings_sha256"] != digest:
        raise DataError(f"{path}: found the state of a run with other settings; give another folder or the same recipe")

    def part(prefix: str) -> Arrays:
        return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}

    moments, key = optimizers.state_from_arrays(part("optimizer."), header["optimizer"]), bytes.fromhex(header["key"])
    return State(header["number"], part("weights."), moments, arrays["accepted"], key, tuple(header["history"]))


def add_noise(total: Arrays, stddev: float, key: bytes, number: int) -> Arrays:
    """``total`` with Gaussian noise of standard deviation ``stddev`` on every value. The stream is bound to the run's
    secret key, the round's number and the bytes of ``total``: the same inputs give the same release, and no two
    different inputs share noise. PrivacyError: stddev that is not a number of 0 or more."""
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
        hidden = values.astype(np.float64) + noise.reshape(values.shape)
        found[name] = np.asarray(np.round(hidden / grid) * grid, np.float32)
    return found


def _gaussian(content: bytes, count: int) -> NDArray[np.float64]:
    """Standard normal values from uniform bytes, by Box and Muller over 53-bit uniforms that never are 0. Cosine and
    sine of an angle come from the tangent of its half, which numpy computes ten times as fast as them."""
    uniform = (np.frombuffer(content, "<u8").reshape(2, -1) >> np.uint64(11)).astype(np.float64)
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
        "epsilon": finite(epsilon),
        "delta": delta,
        "reports": most,
        "rounds": state.number,
        "adjacency": "user: one client's deltas replaced by zero, composed over its rounds",
        "sampling": "none: every accepted report is charged in full",
        "trust_model": "central: whoever runs the simulation sees clipped deltas and adds the noise",
    }
