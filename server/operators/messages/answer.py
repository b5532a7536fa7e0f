"""What all answers have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Answer"]


class Answer(BaseModel):
    """Something an operator is told."""

    model_config = ConfigDict(extra="allow", frozen=True)
