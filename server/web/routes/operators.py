"""The routes operators use, each behind the role that :mod:`server.web.routes.authorization` gives it. Answers are
plain JSON. Who may operate, and what each did, is in :mod:`server.web.routes.accounts`.

    GET  /v1/operator/status
    GET  /v1/operator/privacy                         summary per stream, and one line per device and stream
    GET  /v1/operator/rounds                          POST: {"settings": RoundSettings, "open": true} -> round
    GET  /v1/operator/rounds/{round}
    POST /v1/operator/rounds/{round}/open | close | abandon
    GET  /v1/operator/models                          POST /v1/operator/models/{version}: safetensors weights
    POST /v1/operator/models/{version}/publish        also the way back: publish an older version
    GET  /v1/operator/marginals                       POST: {"probabilities": base64 float64, "note": ""}
    GET  /v1/operator/marginals/{version}             ?top=20
    POST /v1/operator/marginals/{version}/publish

Errors are answered as Problem, as on the devices' routes.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from sqlalchemy import Row

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import FIXED_POINT, Identifier
from server.aggregation.validation import validate_shapes
from server.aggregation.weights_file import parse_weights
from server.operators import messages
from server.operators.actions import record
from server.plans.round import STREAMS
from server.privacy import ledger
from server.registry import marginals as marginal_registry
from server.registry import models as model_registry
from server.registry.publications import current_version, history, publish
from server.registry.retention import check_marginals_present, check_present
from server.rounds.store import find_round, list_rounds, view
from server.web.bodies import body_reader, parse, plain, refused, service
from server.web.operations import WEIGHTS, for_operators
from server.web.routes.authorization import operator_of

__all__ = ["Small", "router"]


router = APIRouter(prefix="/v1/operator")

Small = Annotated[bytes, Depends(body_reader(lambda own: own.settings.limits.message_bytes))]
Weights = Annotated[bytes, Depends(body_reader(lambda own: own.settings.limits.model_bytes))]

OPENING = ("409 round_open no_devices privacy_cap",)
MOVING = ("404 unknown_round", "409 wrong_state")
MARGINALS = ("404 unknown_marginals", "410 marginals_removed")


@router.get("/status", **for_operators(messages.Status))
def get_status(request: Request) -> Response:
    return plain(service(request).status())


@router.get("/privacy", **for_operators(messages.Privacy))
def get_privacy(request: Request) -> Response:
    own = service(request)
    with own.database.read() as connection:
        lines = ledger.device_summary(connection, own.settings.delta_probability)
    caps = {stream: own.settings.cap(stream) for stream in STREAMS}
    return plain({"streams": own.privacy(), "devices": lines, "caps": caps})


@router.get("/rounds", **for_operators(messages.Rounds))
def get_rounds(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
    with service(request).database.read() as connection:
        return plain({"rounds": [view(connection, row) for row in list_rounds(connection, limit)]})


@router.post(
    "/rounds",
    **for_operators(messages.Round, *OPENING, "422 no_rehearsal privacy_cap", takes=messages.RoundRequest, status=201),
)
def post_round(request: Request, body: Small) -> Response:
    wanted = parse(messages.RoundRequest, body or b"{}")
    by = operator_of(request).name
    return plain(service(request).create_round(wanted.settings, opened=wanted.open, by=by), 201)


@router.get("/rounds/{round_id}", **for_operators(messages.Round, "404 unknown_round"))
def get_round(request: Request, round_id: str) -> Response:
    with service(request).database.read() as connection:
        return plain(view(connection, find_round(connection, round_id)))


@router.post("/rounds/{round_id}/open", **for_operators(messages.Round, *OPENING, *MOVING))
def post_open(request: Request, round_id: str) -> Response:
    return plain(service(request).open_round(round_id, operator_of(request).name))


@router.post("/rounds/{round_id}/close", **for_operators(messages.Round, *MOVING))
def post_close(request: Request, round_id: str) -> Response:
    """Answers when the round is published or abandoned, with the new versions."""
    return plain(service(request).close_round(round_id, operator_of(request).name))


@router.post("/rounds/{round_id}/abandon", **for_operators(messages.Round, *MOVING))
def post_abandon(request: Request, round_id: str) -> Response:
    return plain(service(request).abandon_round(round_id, operator_of(request).name))


@router.get("/models", **for_operators(messages.Models))
def get_models(request: Request) -> Response:
    with service(request).database.read() as connection:
        return plain(
            {
                "current": current_version(connection, "model"),
                "models": [_model_view(row) for row in model_registry.list_models(connection)],
                "history": history(connection, "model"),
            }
        )


@router.post(
    "/models/{version}",
    **for_operators(messages.Model, "409 version_exists", "422 bad_weights", takes=WEIGHTS, status=201),
)
def post_model(
    request: Request, version: Identifier, body: Weights, note: str = "", published: bool = True
) -> Response:
    """Register weights made elsewhere, of the current model's names and shapes, and by default publish them."""
    own = service(request)
    with own.database.read() as connection:
        parent = model_registry.find_model(connection, current_version(connection, "model"))
    shapes = {name: values.shape for name, values in model_registry.load(own.blobs, parent.sha256).items()}
    try:
        weights = parse_weights(body)
        validate_shapes(weights, shapes)
    except ProtocolError as error:
        raise refused(error, "bad_weights") from error
    stored = model_registry.store(own.blobs, weights, {"version": version})
    now, by = own.settings.clock(), operator_of(request).name
    said = _said(note, "pushed", by)
    with own.database.write() as connection:
        model_registry.add_model(connection, version, stored, now=now, parent=parent.version, note=said)
        record(connection, by, "model.push", version, now, note)
        if published:
            publish(connection, "model", version, now, said)
        return plain(_model_view(model_registry.find_model(connection, version)), 201)


@router.post("/models/{version}/publish", **for_operators(messages.Model, "404 unknown_model", "410 model_removed"))
def publish_model(request: Request, version: str, note: str = "") -> Response:
    own = service(request)
    with own.database.write() as connection:
        row = model_registry.find_model(connection, version)
        check_present(own.blobs, row)
        now, by = own.settings.clock(), operator_of(request).name
        publish(connection, "model", version, now, _said(note, "published", by))
        record(connection, by, "model.publish", version, now, note)
        return plain(_model_view(row))


@router.get("/marginals", **for_operators(messages.MarginalsList))
def get_all_marginals(request: Request) -> Response:
    with service(request).database.read() as connection:
        return plain(
            {
                "current": int(current_version(connection, "marginals")),
                "marginals": [_marginal_view(row) for row in marginal_registry.list_marginals(connection)],
                "history": history(connection, "marginals"),
            }
        )


@router.get("/marginals/{version}", **for_operators(messages.MarginalsWords, *MARGINALS))
def get_marginal(request: Request, version: int, top: Annotated[int, Query(ge=0, le=1 << 24)] = 20) -> Response:
    """One version and the words it lifts most over the background; every word where ``top`` is that many."""
    own = service(request)
    with own.database.read() as connection:
        row = marginal_registry.find_marginals(connection, version)
        check_marginals_present(row)
        background = marginal_registry.read_probabilities(marginal_registry.find_marginals(connection, 0))
    probabilities = marginal_registry.read_probabilities(row)
    counts = marginal_registry.read_counts(row)
    # By weight moved, not by ratio: a rare word's ratio is mostly noise.
    order = np.argsort(background - probabilities, kind="stable")[:top]
    lifted = [
        {
            "word_id": int(word),
            "word": own.words[word] if word < len(own.words) else None,
            "probability": float(probabilities[word]),
            "background": float(background[word]),
            "released_count": int(counts[word]) / FIXED_POINT,
        }
        for word in order
    ]
    return plain(_marginal_view(row) | {"words": int(probabilities.size), "top": lifted})


@router.post(
    "/marginals",
    **for_operators(messages.MarginalsVersion, "422 bad_marginals", takes=messages.MarginalPush, status=201),
)
def post_marginals(request: Request, body: Weights) -> Response:
    """Register a distribution made elsewhere, and by default publish it. Released counts start again from none."""
    own = service(request)
    wanted = parse(messages.MarginalPush, body)
    now, by = own.settings.clock(), operator_of(request).name
    with own.database.write() as connection:
        parent = marginal_registry.find_marginals(connection, int(current_version(connection, "marginals")))
        words = marginal_registry.read_counts(parent).size
        try:
            probabilities = np.frombuffer(b64decode(wanted.probabilities.encode(), validate=True), "<f8")
            marginal_registry.validate_probabilities(probabilities, words)
        except (ProtocolError, ValueError) as error:
            raise refused(ProtocolError(str(error)), "bad_marginals", "probabilities") from error
        entry = marginal_registry.MarginalEntry(parent.words_digest, probabilities, np.zeros(words, np.int64), 0.0)
        version = marginal_registry.next_version(connection)
        note = _said(wanted.note, "pushed", by)
        marginal_registry.add_marginals(connection, version, entry, now=now, parent=parent.version, note=note)
        record(connection, by, "marginals.push", str(version), now, wanted.note)
        if wanted.publish:
            publish(connection, "marginals", version, now, note)
        return plain(_marginal_view(marginal_registry.find_marginals(connection, version)), 201)


@router.post("/marginals/{version}/publish", **for_operators(messages.MarginalsVersion, *MARGINALS))
def publish_marginals(request: Request, version: int, note: str = "") -> Response:
    own = service(request)
    with own.database.write() as connection:
        row = marginal_registry.find_marginals(connection, version)
        check_marginals_present(row)
        now, by = own.settings.clock(), operator_of(request).name
        publish(connection, "marginals", version, now, _said(note, "published", by))
        record(connection, by, "marginals.publish", str(version), now, note)
        return plain(_marginal_view(row))


def _said(note: str, done: str, by: str) -> str:
    """What is kept with a version: the operator's own words, and who it was."""
    return f"{note[:500]} ({done} by {by})" if note else f"{done} by {by}"


def _model_view(row: Row[Any]) -> dict[str, Any]:
    return {
        "version": row.version,
        "parent": row.parent,
        "teacher": row.teacher,
        "round_id": row.round_id,
        "sha256": row.sha256,
        "size": row.size,
        "created_at": row.created_at,
        "figures": row.figures,
        "note": row.note,
    }


def _marginal_view(row: Row[Any]) -> dict[str, Any]:
    return {
        "version": row.version,
        "parent": row.parent,
        "round_id": row.round_id,
        "sha256": row.sha256,
        "words_digest": row.words_digest,
        "created_at": row.created_at,
        "noise_deviation": row.variance**0.5,
        "figures": row.figures,
        "note": row.note,
    }
