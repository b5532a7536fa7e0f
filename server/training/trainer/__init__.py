"""One training loop for every network, on one processor or many."""

from __future__ import annotations

from server.training.trainer.averages import Average
from server.training.trainer.checkpoints import load_checkpoint, save_checkpoint, write_atomically
from server.training.trainer.logs import append_log
from server.training.trainer.schedules import Budget, Schedule, learning_rate
from server.training.trainer.task import Loss, Sampler, Task

__all__ = [
    "Average",
    "Budget",
    "Loss",
    "Sampler",
    "Schedule",
    "Task",
    "append_log",
    "learning_rate",
    "load_checkpoint",
    "save_checkpoint",
    "write_atomically",
]
