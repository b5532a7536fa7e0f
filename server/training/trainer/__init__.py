"""One training loop for every network, on one processor or many."""

from __future__ import annotations

from server.training.trainer.averages import Average
from server.training.trainer.checkpoints import load_checkpoint, save_checkpoint, write_atomically
from server.training.trainer.logs import Observer, TensorBoard, append_log, progress_bar
from server.training.trainer.loop import Position, Trainer
from server.training.trainer.processes import ALONE, Processes, joined
from server.training.trainer.schedules import Budget, Schedule
from server.training.trainer.settings import Settings
from server.training.trainer.task import Loss, Sampler, Task

__all__ = [
    "ALONE",
    "Average",
    "Budget",
    "Loss",
    "Observer",
    "Position",
    "Processes",
    "Sampler",
    "Schedule",
    "Settings",
    "Task",
    "TensorBoard",
    "Trainer",
    "append_log",
    "joined",
    "load_checkpoint",
    "progress_bar",
    "save_checkpoint",
    "write_atomically",
]
