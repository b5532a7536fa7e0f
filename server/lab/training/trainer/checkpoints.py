"""Atomic checkpoints with exact resume: one safetensors file, nothing pickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from device_sdk.errors import DataError
from server.lab.training.trainer.averages import Average

__all__ = ["load_checkpoint", "load_tensors", "save_checkpoint", "save_tensors", "write_atomically"]


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average,
    state: Mapping[str, Any],
    generators: Mapping[str, Tensor] | None = None,
) -> None:
    """One safetensors file, replaced atomically: parameters, buffers, optimizer state, average, the states of random
    generators [bytes] uint8 by name, and a JSON state."""
    tensors: dict[str, Tensor] = {f"module.{name}": value for name, value in module.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.values.items()}
    tensors |= {f"generator.{name}": value for name, value in (generators or {}).items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in slots.items()}
    save_tensors(path, tensors, {"state": json.dumps({**state, "average_updates": average.updates})})


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore what :func:`save_checkpoint` wrote, into objects built with the same settings. Returns the JSON state and
    the generators' states.

    Raises DataError when the file is damaged or belongs to another network.
    """
    try:
        tensors, metadata = load_tensors(path)
        state: dict[str, Any] = json.loads(metadata["state"])
        module.load_state_dict(_under(tensors, "module."))
        averaged = _under(tensors, "average.")
        with torch.no_grad():
            for name, value in average.values.items():
                value.copy_(averaged[name])
    except Exception as error:
        raise DataError(f"{path}: not a checkpoint of this network ({error}); choose another folder") from error
    average.updates = state.pop("average_updates")
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimizer.").items():
        index, slot = name.split(".", 1)
        slots.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return state, _under(tensors, "generator.")


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file, replaced atomically and on the disk before it is."""
    held = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    temporary = path.with_suffix(".part")
    save_file(held, temporary, dict(metadata or {}))
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file, on the CPU."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return tensors, dict(file.metadata() or {})


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content)
    temporary.replace(path)
