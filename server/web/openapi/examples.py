"""One example of every message: made as the message itself, so that none can be wrong."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import BaseModel

from device_sdk.wire import messages as wire
from device_sdk.wire import secure_aggregation as aggregation
from server.operators import messages
from server.operators.roles import Role
from server.plans.rollout import RolloutSettings
from server.plans.round import RoundSettings
from server.plans.states import RoundState

__all__ = ["EXAMPLES"]

_DEVICE, _OTHER = "9f86d081884c7d659a2feaa0c55ad015", "60303ae22b998861bce3b28f33eec1be"
_ROUND, _REPORT = "r7-0a1b2c3d4e", "b1946ac92492d2347c6235b4d2611184"
_WORDS = "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
_SHA = "d4735e3a265e16eee03f59718b9b5d03019c07d8b6c51f90da3a666eec13ab35"
_AT = 1_795_300_000.0
_KEY = bytes(range(32))
_SIGNATURE, _SHARE = bytes(64), bytes(range(64))
_SEALED = bytes(aggregation.SEALED_BYTES)
_SETTINGS = RoundSettings(goal=400, minimum=100)

_WHO: Final[dict[str, Any]] = {"device_id": _DEVICE, "round_id": _ROUND}


def _encoded(values: list[float]) -> str:
    return b64encode(np.asarray(values, "<f8").tobytes()).decode()


_ROUND_VIEW = messages.Round(
    id=_ROUND,
    number=7,
    state=RoundState.PUBLISHED,
    settings=_SETTINGS.model_dump(mode="json"),
    base_model="m5",
    base_marginals=4,
    opened_at=_AT,
    deadline=_AT + 86_400,
    reports={"marginals": 400, "deltas": 0, "words": 0},
    model_version=None,
    teacher_version=None,
    marginals_version=5,
    groups=[],
    evaluation=None,
    note="goal reached",
    transitions=[
        messages.Move(source=RoundState.PLANNED, target=RoundState.OPEN, at=_AT, note=""),
        messages.Move(source=RoundState.OPEN, target=RoundState.CLOSING, at=_AT + 3600, note="goal reached"),
    ],
    releases={
        "marginals": messages.Release(
            reports=400,
            inputs_sha256=_SHA,
            mechanism={"name": "discrete_laplace", "scale": 5120.0, "trust": "central"},
            drawn_at=_AT + 3601,
        )
    },
)
_EPSILON: Final[dict[str, Any]] = {
    "epsilon": 0.95,
    "delta": 0.0,
    "utterance_epsilon": 1.9,
    "utterance_delta": 0.0,
    "count_epsilon": None,
    "rounds": 1,
}
_MODEL = messages.Model(
    version="m5",
    parent="base-1",
    teacher=None,
    round_id="r6-9e8d7c6b5a",
    sha256=_SHA,
    size=9_400_000,
    created_at=_AT,
    figures={"update_norm": 0.41, "word_error": 0.18},
    note="round 6",
)
_MARGINALS = messages.MarginalsVersion(
    version=5,
    parent=4,
    round_id=_ROUND,
    sha256=_SHA,
    words_digest=_WORDS,
    created_at=_AT + 3602,
    noise_deviation=28.3,
    figures={"surviving_words": 212},
    note="round 7",
)
_ROLLOUT = messages.Rollout(
    version="m6",
    base="m5",
    state="running",
    settings=RolloutSettings().model_dump(mode="json"),
    started_at=_AT,
    ended_at=None,
    looks=2,
    arms={arm: messages.RolloutArm(seen=40, watched=31, failed=1) for arm in ("rollout", "control")},
    figures={},
    note="begun by anna",
)
_OPERATOR: Final[dict[str, Any]] = {
    "name": "anna",
    "role": Role.OPERATOR,
    "created_at": _AT,
    "created_by": "bootstrap",
    "revoked_at": None,
}
_TOKEN: Final[dict[str, Any]] = {
    "name": "spring",
    "created_at": _AT,
    "created_by": "anna",
    "uses": 50,
    "used": 3,
    "expires_at": _AT + 7 * 86_400,
    "revoked_at": None,
}
_SECRET = "kq1Zt0cYxw6m8J3bE5nV2rS9uL7dF4hGaPoXiTyWzQM"

_MESSAGES: Final[tuple[BaseModel, ...]] = (
    wire.Enrol(token=_SECRET, public_key=b64encode(_KEY).decode()),
    wire.Enrolled(device_id=_DEVICE),
    wire.CheckIn(device_id=_DEVICE, bundle_format=1, model_version="m5", marginals_version=4, words_digest=_WORDS),
    wire.CheckedIn(
        model_version="m5",
        model_sha256=_SHA,
        marginals_version=4,
        marginals_sha256=_SHA,
        round=wire.RoundOffer(
            round_id=_ROUND, model_version="m5", marginals=wire.MarginalPlan(), closes_in_seconds=82_800.0
        ),
        retry_after_seconds=3600.0,
    ),
    wire.MarginalReport(report_id=_REPORT, words_digest=_WORDS, utterances=12, counts={17: 256, 90: 128}, **_WHO),
    wire.WordReport(report_id=_REPORT, words_digest=_WORDS, words=("babyccino", "cortado"), **_WHO),
    wire.Receipt(report_id=_REPORT),
    wire.Marginals(marginals_version=5, words_digest=_WORDS, probabilities=_encoded([0.5, 0.25, 0.25])),
    aggregation.AggregationPoll(**_WHO),
    aggregation.AggregationTask(stage="consistency", retry_after_seconds=5.0, survivors=(_OTHER, _DEVICE)),
    aggregation.KeyAdvertisement(
        words_digest=_WORDS,
        identity_key=_KEY,
        sharing_key=_KEY,
        masking_key=_KEY,
        seed_commitment=_KEY,
        signature=_SIGNATURE,
        **_WHO,
    ),
    aggregation.DealtShares(sealed={_OTHER: _SEALED}, **_WHO),
    aggregation.MaskedInput(masked=bytes(range(16)), **_WHO),
    aggregation.SurvivorSignature(signature=_SIGNATURE, **_WHO),
    aggregation.RevealedShares(seeds={_OTHER: _SHARE}, mask_keys={}, **_WHO),
    aggregation.StageReceipt(stage="masked"),
    messages.RoundRequest(settings=_SETTINGS),
    messages.MarginalPush(probabilities=_encoded([0.5, 0.25, 0.25]), note="from last year's text"),
    messages.RolloutRequest(version="m6"),
    messages.OperatorRequest(name="anna", role=Role.OPERATOR),
    messages.EnrolmentTokenRequest(name="spring", uses=50, seconds=7 * 86_400.0),
    messages.Health(status="ok"),
    messages.Readiness(
        status="ready",
        checks=dict.fromkeys(("database", "schema", "model", "blobs", "disk", "rounds"), True),
        model_version="m5",
        tick_ages={"loop": 0.3, "r7-0a1b2c3d4e": 0.3},
    ),
    messages.Me(name="anna", role=Role.OPERATOR),
    messages.Status(
        model_version="m5", teacher_version=None, marginals_version=5, devices=1200, since=_AT, rounds=[_ROUND_VIEW]
    ),
    messages.Privacy(
        streams={
            "marginals": messages.StreamPrivacy(
                adjacency="a user's reports added or removed",
                utterance_adjacency="an utterance added or removed",
                sampling="without amplification",
                trust_model="central: the server sees counts before noise",
                devices=400,
                **_EPSILON,
            )
        },
        devices=[messages.DevicePrivacy(device_id=_DEVICE, stream="marginals", **_EPSILON)],
        caps={"marginals": 100.0, "deltas": float("inf"), "words": 100.0},
    ),
    _ROUND_VIEW,
    messages.Rounds(rounds=[_ROUND_VIEW]),
    _MODEL,
    messages.Models(
        current="m5", models=[_MODEL], history=[messages.Publication(version="m5", at=_AT, note="round 6")]
    ),
    _MARGINALS,
    messages.MarginalsList(
        current=5,
        marginals=[_MARGINALS],
        history=[messages.Publication(version="5", at=_AT + 3602, note="round 7")],
    ),
    messages.MarginalsWords(
        words=20_000,
        top=[messages.Word(word_id=17, word="espresso", probability=2e-3, background=4e-5, released_count=310.5)],
        **_MARGINALS.model_dump(),
    ),
    _ROLLOUT,
    messages.Rollouts(running="m6", rollouts=[_ROLLOUT]),
    messages.Devices(
        count=1200,
        devices=[
            messages.DeviceEntry(device_id=_DEVICE, enrolled_at=_AT, revoked_at=None, enrolment_token="spring"),
        ],
    ),
    messages.DeviceRevoked(device_id=_DEVICE, revoked=True),
    messages.OperatorMade(token=_SECRET, **_OPERATOR),
    messages.OperatorEntry(**_OPERATOR),
    messages.Operators(operators=[messages.OperatorEntry(**_OPERATOR)]),
    messages.EnrolmentTokenMade(token=_SECRET, **_TOKEN),
    messages.EnrolmentTokenEntry(**_TOKEN),
    messages.EnrolmentTokens(enrolment_tokens=[messages.EnrolmentTokenEntry(**_TOKEN)]),
    messages.Actions(
        actions=[messages.ActionEntry(at=_AT, operator="anna", action="round.open", subject=_ROUND, note="")]
    ),
)

EXAMPLES: Final[Mapping[type[BaseModel], Any]] = {type(each): each for each in _MESSAGES}
"""By the message's class."""
