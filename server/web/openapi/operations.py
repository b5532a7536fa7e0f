"""What every route takes, what it answers and what it refuses, beside who may call it
(:mod:`server.web.routes.authorization`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pydantic import BaseModel

from device_sdk.wire import messages as wire
from device_sdk.wire import secure_aggregation as aggregation
from server.operators import messages

__all__ = ["OPERATIONS", "Bytes", "Content", "Operation"]


@dataclass(frozen=True, slots=True)
class Bytes:
    """Content that is no JSON message of ours. example: it, or what stands for it where it is no text."""

    media_type: str
    description: str
    example: str


Content: TypeAlias = type[BaseModel] | Bytes
Codes: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """takes: bodies, of which it is one; none for no body. answers: by status. refuses: names of problems
    (:data:`server.web.openapi.problems.PROBLEMS`)."""

    answers: Mapping[int, Content | None]
    takes: tuple[Content, ...] = ()
    refuses: Codes = ()


_WEIGHTS: Final = Bytes(
    "application/octet-stream",
    "Weights: safetensors bytes, float32, in ONNX layout.",
    '<safetensors: {"encoder.0.W": {"dtype": "F32", "shape": [1, 1280, 192], ...}, ...} and the values>',
)
_DIFFERENCE: Final = Bytes(
    "application/octet-stream", "What makes the weights of one version of those of another.", "<compressed difference>"
)
_DELTA: Final = Bytes(
    "application/octet-stream",
    "A delta: safetensors bytes whose metadata has a DeltaHeader as JSON under `header`.",
    '<safetensors: {"__metadata__": {"header": "{\\"report_id\\": \\"b1946ac9\\", ...}"}, "encoder.0.W": {...}, ...}>',
)
_METADATA: Final = Bytes(
    "application/json",
    "Signed metadata of The Update Framework, exact bytes.",
    '{"signatures": [{"keyid": "5c0f...", "sig": "3f2a..."}], "signed": {"_type": "timestamp", "version": 1}}',
)
_METRICS: Final = Bytes("text/plain", "Prometheus' text format.", "idiolect_devices 3.0\n")
_DOCUMENT: Final = Bytes("application/json", "This document.", '{"openapi": "3.1.0"}')

_BODY: Codes = ("disconnected", "too_slow", "too_large", "encoding", "bad_message")
_SIGNED: Codes = ("unsigned", "stale_time", "unknown_device", "bad_signature", "device_revoked")
_REPORT: Codes = (*_SIGNED, *_BODY, "other_device", "other_round", "replayed", "unknown_round", "no_room")
_ACCEPTANCE: Codes = (
    "round_closed",
    "not_collected",
    "not_sampled",
    "already_reported",
    "report_conflict",
    "privacy_cap",
)
_STAFF: Codes = ("bad_token", "token_revoked", "role")
_QUERY: Codes = ("bad_request",)
_RANGE: Codes = ("bad_range", "unread_range")

_V1, _OPERATOR = "/v1", "/v1/operator"


def _reads(answer: Content, *refuses: str) -> Operation:
    return Operation({200: answer}, refuses=(*_STAFF, *refuses))


def _does(answer: Content, *refuses: str, takes: Content | None = None, status: int = 200) -> Operation:
    body = () if takes is None else _BODY
    return Operation({status: answer}, () if takes is None else (takes,), (*_STAFF, *body, *refuses))


OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", f"{_V1}/enrol"): Operation(
        {200: wire.Enrolled},
        (wire.Enrol,),
        (
            *_BODY,
            "bad_enrolment_token",
            "bad_key",
            "device_revoked",
            "enrolment_token_revoked",
            "token_expired",
            "token_used_up",
        ),
    ),
    ("POST", f"{_V1}/check-in"): Operation(
        {200: wire.CheckedIn}, (wire.CheckIn,), (*_SIGNED, *_BODY, "other_device", "replayed")
    ),
    ("POST", f"{_V1}/rounds/{{round_id}}/marginals"): Operation(
        {200: wire.Receipt},
        (wire.MarginalReport,),
        (
            *_REPORT,
            "other_words",
            "bad_counts",
            *_ACCEPTANCE,
            "utterances",
        ),
    ),
    ("POST", f"{_V1}/rounds/{{round_id}}/deltas"): Operation(
        {200: wire.Receipt},
        (_DELTA,),
        (
            *_REPORT,
            "bad_delta",
            "stale_model",
            "too_few_utterances",
            "too_many_utterances",
            "other_plan",
            *_ACCEPTANCE,
            "utterances",
        ),
    ),
    ("POST", f"{_V1}/rounds/{{round_id}}/words"): Operation(
        {200: wire.Receipt},
        (wire.WordReport,),
        (
            *_REPORT,
            "other_words",
            "bad_words",
            *_ACCEPTANCE,
        ),
    ),
    ("POST", f"{_V1}/rounds/{{round_id}}/aggregation"): Operation(
        {200: aggregation.AggregationTask},
        (aggregation.AggregationPoll,),
        (*_REPORT, "not_collected", "not_joined"),
    ),
    ("POST", f"{_V1}/rounds/{{round_id}}/aggregation/{{stage}}"): Operation(
        {200: aggregation.StageReceipt},
        (
            aggregation.KeyAdvertisement,
            aggregation.DealtShares,
            aggregation.MaskedInput,
            aggregation.SurvivorSignature,
            aggregation.RevealedShares,
        ),
        (
            *_REPORT,
            *_QUERY,
            "not_collected",
            "not_sampled",
            "round_closed",
            "busy",
            "other_words",
            "excluded",
            "privacy_cap",
            "message_conflict",
            "not_joined",
            "other_stage",
        ),
    ),
    ("GET", f"{_V1}/models/{{version}}"): Operation(
        {200: _WEIGHTS, 206: _WEIGHTS, 304: None}, refuses=("unknown_model", "model_removed", *_RANGE)
    ),
    ("GET", f"{_V1}/models/{{version}}/from/{{base}}"): Operation(
        {200: _DIFFERENCE, 206: _DIFFERENCE, 304: None},
        refuses=("no_difference", "unknown_model", "model_removed", *_RANGE),
    ),
    ("GET", f"{_V1}/marginals/{{version}}"): Operation(
        {200: wire.Marginals, 304: None}, refuses=("marginals_removed", "unknown_marginals", *_QUERY)
    ),
    ("GET", f"{_V1}/updates/{{name}}"): Operation({200: _METADATA}, refuses=("unknown_metadata",)),
    ("GET", f"{_OPERATOR}/me"): _reads(messages.Me),
    ("GET", f"{_OPERATOR}/status"): _reads(messages.Status),
    ("GET", f"{_OPERATOR}/privacy"): _reads(messages.Privacy),
    ("GET", f"{_OPERATOR}/rounds"): _reads(messages.Rounds, *_QUERY),
    ("GET", f"{_OPERATOR}/rounds/{{round_id}}"): _reads(messages.Round, "unknown_round"),
    ("GET", f"{_OPERATOR}/models"): _reads(messages.Models),
    ("GET", f"{_OPERATOR}/marginals"): _reads(messages.MarginalsList),
    ("GET", f"{_OPERATOR}/marginals/{{version}}"): _reads(
        messages.MarginalsWords, "marginals_removed", "unknown_marginals", *_QUERY
    ),
    ("GET", f"{_OPERATOR}/rollout"): _reads(messages.Rollouts),
    ("GET", f"{_OPERATOR}/devices"): _reads(messages.Devices, *_QUERY),
    ("GET", f"{_OPERATOR}/actions"): _reads(messages.Actions, *_QUERY),
    ("GET", f"{_OPERATOR}/operators"): _reads(messages.Operators),
    ("GET", f"{_OPERATOR}/enrolment-tokens"): _reads(messages.EnrolmentTokens),
    ("POST", f"{_OPERATOR}/rounds"): _does(
        messages.Round,
        "round_open",
        "no_rehearsal",
        "dear_plan",
        "no_devices",
        "no_cap_left",
        takes=messages.RoundRequest,
        status=201,
    ),
    ("POST", f"{_OPERATOR}/rounds/{{round_id}}/open"): _does(
        messages.Round, "unknown_round", "round_open", "wrong_state", "no_devices", "no_cap_left"
    ),
    ("POST", f"{_OPERATOR}/rounds/{{round_id}}/close"): _does(messages.Round, "unknown_round", "wrong_state"),
    ("POST", f"{_OPERATOR}/rounds/{{round_id}}/abandon"): _does(messages.Round, "unknown_round", "wrong_state"),
    ("POST", f"{_OPERATOR}/models/{{version}}"): _does(
        messages.Model, "bad_weights", "version_exists", *_QUERY, takes=_WEIGHTS, status=201
    ),
    ("POST", f"{_OPERATOR}/models/{{version}}/publish"): _does(messages.Model, "unknown_model", "model_removed"),
    ("POST", f"{_OPERATOR}/marginals"): _does(
        messages.MarginalsVersion, "bad_marginals", takes=messages.MarginalPush, status=201
    ),
    ("POST", f"{_OPERATOR}/marginals/{{version}}/publish"): _does(
        messages.MarginalsVersion, "marginals_removed", "unknown_marginals", *_QUERY
    ),
    ("POST", f"{_OPERATOR}/rollout"): _does(
        messages.Rollout,
        "unknown_model",
        "model_removed",
        "rollout_running",
        "is_current",
        takes=messages.RolloutRequest,
        status=201,
    ),
    ("POST", f"{_OPERATOR}/rollout/promote"): _does(messages.Rollout, "no_rollout", "worse", "model_removed", *_QUERY),
    ("POST", f"{_OPERATOR}/rollout/roll-back"): _does(messages.Rollout, "no_rollout"),
    ("POST", f"{_OPERATOR}/devices/{{device_id}}/revoke"): _does(messages.DeviceRevoked, "not_enrolled"),
    ("POST", f"{_OPERATOR}/operators"): _does(
        messages.OperatorMade, "name_taken", takes=messages.OperatorRequest, status=201
    ),
    ("POST", f"{_OPERATOR}/operators/{{name}}/revoke"): _does(messages.OperatorEntry, "unknown_operator"),
    ("POST", f"{_OPERATOR}/enrolment-tokens"): _does(
        messages.EnrolmentTokenMade, "name_taken", takes=messages.EnrolmentTokenRequest, status=201
    ),
    ("POST", f"{_OPERATOR}/enrolment-tokens/{{name}}/revoke"): _does(
        messages.EnrolmentTokenEntry, "unknown_enrolment_token"
    ),
    ("GET", "/healthz"): Operation({200: messages.Health}),
    ("HEAD", "/healthz"): Operation({200: None}),
    ("HEAD", "/readyz"): Operation({200: None, 503: None}),
    ("GET", "/readyz"): Operation({200: messages.Readiness, 503: messages.Readiness}),
    ("GET", "/metrics"): _reads(_METRICS),
    ("GET", "/openapi.json"): Operation({200: _DOCUMENT}),
}
"""(method, route) -> what it is about. The web pages are for people and have no row."""
