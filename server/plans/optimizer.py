"""What an operator decides about the server's optimizer, and its learning rate at every update."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0, lt=1)]


class ScheduleSettings(BaseModel):
    """How the learning rate moves with the number of updates t = 1, 2, ...

    warmup: updates over which it rises linearly to its value. start, decay, transition: after ``start`` updates it is
    multiplied by decay^((t - start) / transition), or in whole steps of it where ``staircase`` (Pelikan et al. 2023:
    decay 0.6 over 250 to 750 updates from t = 750 or 1,000 on). least: the smallest share of the learning rate that is
    left."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    warmup: Annotated[int, Field(ge=0)] = 0
    start: Annotated[int, Field(ge=0)] = 0
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    transition: Annotated[int, Field(ge=1)] = 1
    staircase: bool = False
    least: Annotated[float, Field(ge=0, le=1)] = 0.0


class OptimizerSettings(BaseModel):
    """kind and its hyper-parameters.

    momentum, second_momentum: of the moments, which ``sgd`` has not. epsilon: added to the root of the second moment.
    weight_decay: of LAMB, which scales it with the update. schedule: of the learning rate."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: Literal["sgd", "adam", "lamb"] = "sgd"
    learning_rate: Annotated[float, Field(gt=0)] = 1.0
    momentum: Fraction = 0.9
    second_momentum: Fraction = 0.99
    epsilon: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: ScheduleSettings = ScheduleSettings()
