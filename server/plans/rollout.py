"""How a rollout is run."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

YEAR = 366 * 86_400.0


class RolloutSettings(BaseModel):
    """share: of the devices that get the model first; as many others are the control. seconds: how long it runs before
    it may be promoted. patience: seconds within which a device that was offered something must have come back, with it
    installed; more than the fleet takes between two check-ins. minimum: devices of either arm that must have been
    watched that long before anything is decided. doubt: the probability, at most, that a model is taken back which is
    no worse than the other. automatic: False leaves promotion to the operator; what is worse is taken back either
    way."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    share: Annotated[float, Field(ge=1e-6, le=0.5)] = 0.1
    seconds: Annotated[float, Field(gt=0, le=YEAR)] = 2 * 86_400.0
    patience: Annotated[float, Field(gt=0, le=YEAR)] = 86_400.0
    minimum: Annotated[int, Field(ge=1, le=10_000_000)] = 20
    doubt: Annotated[float, Field(gt=0, lt=1)] = 0.05
    automatic: bool = True
