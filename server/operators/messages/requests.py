"""What operators send."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from device_sdk.wire.messages import Identifier
from server.operators.roles import Role
from server.plans.rollout import RolloutSettings
from server.plans.round import RoundSettings

__all__ = ["RolloutRequest", "EnrolmentTokenRequest", "MarginalPush", "OperatorRequest", "RoundRequest"]


class Request(BaseModel):
    """Something an operator asks for: what it does not know is refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class RoundRequest(Request):
    """A round to create. open: whether it takes reports at once."""

    settings: RoundSettings = RoundSettings()
    open: bool = True


class MarginalPush(Request):
    """A distribution made elsewhere. probabilities: float64 little-endian, base64, over the public word list."""

    probabilities: str
    note: str = ""
    publish: bool = True


class RolloutRequest(Request):
    """A registered model that some of the devices are to get first. settings: None for the server's own."""

    version: Identifier
    settings: RolloutSettings | None = None
    note: str = ""


class OperatorRequest(Request):
    """An operator to add. name: of a person or a program, never given twice."""

    name: Identifier
    role: Role


class EnrolmentTokenRequest(Request):
    """A token to make. uses: how many devices it lets in, null for any number; seconds: how long, null for ever."""

    name: Identifier
    uses: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = 1000
    seconds: Annotated[float, Field(gt=0, le=366 * 86400)] | None = None
