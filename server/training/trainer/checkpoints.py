"""Atomic checkpoints with exact resume: one safetensors file, nothing pickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from device_sdk.errors import DataError
from server.training.trainer.averages import Average

__all__ = ["load_checkpoint", "save_checkpoint", "write_atomically"]


def save_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average, state: Mapping[str, Any]
) -> None:
    """One safetensors file, replaced atomically: parameters, buffers, optimizer state, average and a JSON state."""
    tensors: dict[str, Tensor] = {f"module.{name}": value for name, value in module.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.values.items()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in slots.items()}
    held = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    temporary = path.with_suffix(".part")
    save_file(held, temporary, {"state": json.dumps({**state, "average_updates": average.updates})})
    temporary.replace(path)


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, average: Average
) -> dict[str, Any]:
    """Restore what :func:`save_checkpoint` wrote, into objects built with the same settings. Returns the JSON state.

    Raises DataError when the file is damaged or belongs to another network.
    """
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            state: dict[str, Any] = json.loads(file.metadata()["state"])
        module.load_state_dict(_under(tensors, "module."))
        averaged = _under(tensors, "average.")
        average.values = {name: averaged[name] for name in average.values}  # a file keeps no order
    except Exception as error:
        raise DataError(f"{path}: not a checkpoint of this network ({error}); choose another folder") from error
    average.updates = state["average_updates"]
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimizer.").items():
        index, slot = name.split(".", 1)
        slots.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return state


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(content)
    temporary.replace(path)
