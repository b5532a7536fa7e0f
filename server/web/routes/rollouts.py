"""The routes of rollouts, for operators.

GET  /v1/operator/rollout                  the running one, and those before it
POST /v1/operator/rollout                  RolloutRequest: begin
POST /v1/operator/rollout/promote          ?force=false
POST /v1/operator/rollout/roll-back
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from server.operators import messages
from server.operators.actions import record
from server.plans.rollout import RolloutSettings
from server.registry.models import find_model
from server.registry.retention import check_present
from server.rounds.rollout import conduct, store
from server.web.bodies import body_reader, parse, plain, service
from server.web.operations import for_operators
from server.web.routes.authorization import operator_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/operator/rollout")

Small = Annotated[bytes, Depends(body_reader(lambda own: own.settings.limits.message_bytes))]


@router.get("", **for_operators(messages.Rollouts))
def get_rollout(request: Request) -> Response:
    own = service(request)
    now = own.settings.clock()
    with own.database.read() as connection:
        running = store.running(connection)
        found = [store.view(connection, row, now) for row in store.list_rollouts(connection)]
    return plain({"running": None if running is None else running.version, "rollouts": found})


@router.post(
    "",
    **for_operators(
        messages.Rollout,
        "404 unknown_model",
        "409 rollout_running is_current",
        "410 model_removed",
        takes=messages.RolloutRequest,
        status=201,
    ),
)
def post_rollout(request: Request, body: Small) -> Response:
    """Answers with the rollout. Its devices get the model with their next check-in."""
    own, wanted = service(request), parse(messages.RolloutRequest, body)
    now, by = own.settings.clock(), operator_of(request).name
    with own.database.write() as connection:
        check_present(own.blobs, find_model(connection, wanted.version))
        settings = wanted.settings or own.settings.rollout or RolloutSettings()
        store.begin(connection, wanted.version, settings, now, wanted.note[:500] or f"begun by {by}")
        record(connection, by, "rollout.begin", wanted.version, now, wanted.note)
        return plain(store.view(connection, store.require_running(connection), now), 201)


@router.post("/promote", **for_operators(messages.Rollout, "409 no_rollout worse", "410 model_removed"))
def post_promote(request: Request, note: str = "", force: bool = False) -> Response:
    """Answers when held-out speech was heard, where the server has some."""
    return plain(service(request).promote_rollout(note, force=force, by=operator_of(request).name))


@router.post("/roll-back", **for_operators(messages.Rollout, "409 no_rollout"))
def post_roll_back(request: Request, note: str = "") -> Response:
    own = service(request)
    return plain(conduct.roll_back(own.database, own.settings.clock(), operator_of(request).name, note))
