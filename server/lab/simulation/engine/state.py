"""What one round hands to the next, and its file: one safetensors file with JSON in its header, whole or not at all."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from device_sdk.errors import DataError
from server.aggregation import optimizers
from server.aggregation.optimizers import OptimizerState
from server.lab.simulation.engine.population import Arrays

__all__ = ["State", "load", "new_key", "store"]


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


def new_key() -> bytes:
    """From the system's generator, never from a seed."""
    return secrets.token_bytes(32)


def store(path: Path, state: State, digest: str) -> None:
    """Write a state atomically, readable by its owner alone, since it holds the key. digest: of the settings."""
    moments, optimizer = optimizers.state_to_arrays(state.optimizer)
    arrays: dict[str, NDArray[Any]] = {f"weights.{name}": values for name, values in state.weights.items()}
    arrays |= {f"optimizer.{name}": values for name, values in moments.items()}
    arrays["accepted"] = state.accepted
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
    temporary.write_bytes(save(contiguous, {"engine": json.dumps(header)}))
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

    return State(
        header["number"],
        part("weights."),
        optimizers.state_from_arrays(part("optimizer."), header["optimizer"]),
        arrays["accepted"],
        bytes.fromhex(header["key"]),
        tuple(header["history"]),
    )
