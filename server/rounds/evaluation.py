"""What decides whether a model may be published."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evaluate", "Evaluation"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Verdict on a round's model. figures: numbers to keep with the model; note: for people."""

    passed: bool = True
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = "no evaluation data: passed unseen"


Weights = Mapping[str, NDArray[np.float32]]
Evaluate = Callable[[Weights, Weights], Evaluation]
"""(weights that a round made, those it began with) -> whether the former may be published."""
