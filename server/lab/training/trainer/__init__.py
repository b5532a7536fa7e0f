"""One training loop for every network, on one processor or many."""

from __future__ import annotations

from server.lab.training.trainer.averages import Average
from server.lab.training.trainer.checkpoints import load_checkpoint, save_checkpoint, write_atomically
from server.lab.training.trainer.logs import Observer, TensorBoard, append_log, progress_bar
from server.lab.training.trainer.loop import Position, Trainer
from server.lab.training.trainer.processes import ALONE, Processes, joined
from server.lab.training.trainer.schedules import Budget, Schedule
from server.lab.training.trainer.settings import Settings
from server.lab.training.trainer.task import Loss, Sampler, Task

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
