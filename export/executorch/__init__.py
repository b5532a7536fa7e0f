"""A bundle as ExecuTorch programs for phones and other small machines, which recognize and, where asked to, train."""

from export.executorch.training import TrainingStep
from export.executorch.writer import TRAINING_BUCKETS, export_executorch

__all__ = ["TRAINING_BUCKETS", "TrainingStep", "export_executorch"]
