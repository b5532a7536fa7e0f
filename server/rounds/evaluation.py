"""What decides whether a model may be published."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from device_sdk.errors import IdiolectError
from server.registry.models import find_model, load
from server.storage.blobs import BlobStore
from server.storage.database import Database


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Verdict on a round's model. figures: numbers to keep with the model; note: for people."""

    passed: bool = True
    figures: Mapping[str, float] = field(default_factory=dict)
    note: str = "no evaluation data: passed unseen"


Weights = Mapping[str, NDArray[np.float32]]
Evaluate = Callable[[Weights, Weights], Evaluation]
"""(weights that a round made, those it began with) -> whether the former may be published."""


def compare(database: Database, blobs: BlobStore, evaluate: Evaluate | None, version: str, base: str) -> Evaluation:
    """The verdict on a registered model beside another; without ``evaluate`` it passes."""
    if evaluate is None:
        return Evaluation()
    with database.read() as connection:
        model, other = (find_model(connection, each).sha256 for each in (version, base))
    try:
        return evaluate(load(blobs, model), load(blobs, other))
    except IdiolectError as error:  # a model that cannot be looked at is not published
        return Evaluation(passed=False, note=f"evaluation failed: {error}")
