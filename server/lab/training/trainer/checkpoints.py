"""Atomic checkpoints with exact resume: one safetensors file, nothing pickled."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from device_sdk.errors import DataError


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimizer: Optimizer,
    schedule: LRScheduler,
    average: AveragedModel,
    state: Mapping[str, Any],
) -> None:
    """Write everything that a run goes on from, with torch's random generators and a JSON state, to one file."""
    saved = optimizer.state_dict()
    tensors = {f"module.{name}": value for name, value in module.state_dict().items()}
    tensors |= {f"average.{name}": value for name, value in average.state_dict().items()}
    for index, slots in saved["state"].items():
        tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in slots.items()}
    tensors["generator.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["generator.cuda"] = torch.cuda.get_rng_state()
    described = {"state": dict(state), "groups": saved["param_groups"], "schedule": schedule.state_dict()}
    save_tensors(path, tensors, {name: json.dumps(value) for name, value in described.items()})


def load_checkpoint(
    path: Path, module: nn.Module, optimizer: Optimizer, schedule: LRScheduler, average: AveragedModel
) -> dict[str, Any]:
    """Restore what :func:`save_checkpoint` wrote, into objects built with the same settings. Returns the JSON state.
    Raises DataError when the file is damaged or belongs to another network."""
    try:
        tensors, metadata = load_tensors(path)
        described = {name: json.loads(value) for name, value in metadata.items()}
        slots: dict[int, dict[str, Tensor]] = {}
        for name, value in _under(tensors, "optimizer.").items():
            index, slot = name.split(".", 1)
            slots.setdefault(int(index), {})[slot] = value
        module.load_state_dict(_under(tensors, "module."))
        average.load_state_dict(_under(tensors, "average."))
        optimizer.load_state_dict({"state": slots, "param_groups": described["groups"]})
        schedule.load_state_dict(described["schedule"])
        torch.set_rng_state(tensors["generator.cpu"])
        if "generator.cuda" in tensors and torch.cuda.is_available():
            torch.cuda.set_rng_state(tensors["generator.cuda"])
        state: dict[str, Any] = described["state"]
    except Exception as error:
        raise DataError(f"{path}: not a checkpoint of this network ({error}); choose another folder") from error
    return state


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """A safetensors file, replaced atomically and on the disk before it is."""
    copies = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    temporary = path.with_suffix(".part")
    save_file(copies, temporary, dict(metadata or {}))
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
