"""One training loop for every network."""

from __future__ import annotations

from server.lab.training.trainer.checkpoints import write_atomically
from server.lab.training.trainer.logs import Observer, TensorBoard, append_log, progress_bar
from server.lab.training.trainer.loop import Position, Trainer
from server.lab.training.trainer.settings import Budget, Settings
from server.lab.training.trainer.task import Loss, Sampler, Task

__all__ = [
    "Budget",
    "Loss",
    "Observer",
    "Position",
    "Sampler",
    "Settings",
    "Task",
    "TensorBoard",
    "Trainer",
    "append_log",
    "progress_bar",
    "write_atomically",
]
