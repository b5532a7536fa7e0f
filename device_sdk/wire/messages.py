"""Messages of the check-in protocol, version 1.

    POST /v1/enrol                              Enrol -> Enrolled
    POST /v1/check-in                   signed  CheckIn -> CheckedIn
    POST /v1/rounds/{round}/marginals   signed  MarginalReport -> Receipt
    POST /v1/rounds/{round}/deltas      signed  safetensors bytes, DeltaHeader in its metadata -> Receipt
    GET  /v1/models/{version}                   safetensors bytes (weights only), sha256 in the ETag
    GET  /v1/marginals/{version}                Marginals

Errors are answered as Problem with a 4xx or 5xx status. A report id seen before with the same body is answered with
``duplicate`` true and counted once; with another body it is refused (409).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "VERSION",
    "CheckIn",
    "CheckedIn",
    "DeltaHeader",
    "DeltaPlan",
    "Enrol",
    "Enrolled",
    "MarginalPlan",
    "MarginalReport",
    "Marginals",
    "Problem",
    "Receipt",
    "RoundOffer",
]

VERSION = 1
FIXED_POINT = 1 << 8
"""Marginal counts travel as integers in units of 1 / FIXED_POINT."""

Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    version: Literal[1] = 1


class Enrol(Message):
    """A device introduces itself. public_key: Ed25519, raw, base64."""

    token: str
    public_key: str


class Enrolled(Message):
    device_id: Identifier


class CheckIn(Message):
    """What the device has now."""

    device_id: Identifier
    bundle_format: int
    model_version: str
    marginals_version: int
    words_digest: str


class MarginalPlan(Message):
    """How a device bounds what it sends. max_words: distinct words a round; max_weight: largest count of one word."""

    max_words: Annotated[int, Field(ge=1, le=1000)] = 20
    max_weight: Annotated[float, Field(gt=0)] = 1.0
    epsilon: Annotated[float, Field(gt=0)] = 1.0
    trust: Literal["central", "local"] = "central"


class DeltaPlan(Message):
    """How a device bounds and noises its delta.

    clip_norm: L2 bound of the whole delta; noise_stddev: standard deviation of the Gaussian noise this device adds to
    every value (its share of the cohort's noise), 0 for none (then epsilon is infinite).
    """

    clip_norm: Annotated[float, Field(gt=0)] = 1.0
    noise_stddev: Annotated[float, Field(ge=0)] = 0.0
    minimum_utterances: Annotated[int, Field(ge=1)] = 1


class RoundOffer(Message):
    round_id: Identifier
    model_version: str
    marginals: MarginalPlan | None = None
    deltas: DeltaPlan | None = None
    closes_in_seconds: float


class CheckedIn(Message):
    """The server's answer: what is current, the open round if any, and when to come back."""

    model_version: str
    model_sha256: str
    marginals_version: int
    round: RoundOffer | None = None
    retry_after_seconds: float


class MarginalReport(Message):
    """Bounded counts of new utterances. counts: word id -> weight in units of 1 / FIXED_POINT."""

    report_id: Identifier
    device_id: Identifier
    round_id: Identifier
    words_digest: str
    utterances: Annotated[int, Field(ge=0)]
    counts: dict[int, int]


class DeltaHeader(Message):
    """Travels as the ``header`` entry of the safetensors metadata."""

    report_id: Identifier
    device_id: Identifier
    round_id: Identifier
    model_version: str
    utterances: Annotated[int, Field(ge=1)]


class Receipt(Message):
    report_id: Identifier
    duplicate: bool = False


class Marginals(Message):
    """The global distribution over the public word list. probabilities: float64 little-endian, base64."""

    marginals_version: int
    words_digest: str
    probabilities: str


class Problem(Message):
    """What went wrong: code is stable for programs, detail is for people, field names the culprit."""

    code: str
    detail: str
    field: str | None = None
