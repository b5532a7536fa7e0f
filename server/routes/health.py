"""Is the server up, and how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from server.devices.enrolment import count_devices
from server.registry.publications import current_version
from server.rounds.states import RoundState
from server.rounds.store import count_by_state
from server.routes.bodies import plain, service

__all__ = ["router"]

router = APIRouter()


@router.get("/healthz")
def get_health(request: Request) -> Response:
    """200 when the database answers and a model is published."""
    with service(request).database.read() as connection:
        return plain({"status": "ok", "model_version": current_version(connection, "model")})


@router.get("/metrics")
def get_metrics(request: Request) -> Response:
    own = service(request)
    with own.database.read() as connection:
        own.metrics.devices.set(count_devices(connection))
        counts = count_by_state(connection)
    for state in RoundState:
        own.metrics.rounds.labels(state).set(counts.get(state, 0))
    return Response(own.metrics.text(), media_type=CONTENT_TYPE_LATEST)
