"""One training loop for every network."""

from server.lab.training.trainer.checkpoints import write_atomically
from server.lab.training.trainer.logs import Observer, append_log, progress_bar
from server.lab.training.trainer.loop import Position, Trainer
from server.lab.training.trainer.settings import Budget, Settings
from server.lab.training.trainer.task import Loss, Sampler, Task

__all__ = [
    "Budget", "Loss", "Observer", "Position", "Sampler", "Settings", "Task", "Trainer",
    "append_log", "progress_bar", "write_atomically",
]  # fmt: skip
