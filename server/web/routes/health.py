"""Is the server up, can it serve, how is it doing, and what does it understand."""

from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from server.devices.enrolment import count_devices
from server.operators import messages
from server.plans.round import RoundState
from server.rounds.store import count_by_state
from server.web.bodies import plain, service
from server.web.operations import Bytes, for_operators, operation

METRICS = Bytes("Prometheus' text format.", "text/plain")
DOCUMENT = Bytes("This document.", "application/json")

router = APIRouter()


@router.head("/healthz", **operation(None))
@router.get("/healthz", **operation(messages.Health))
def get_health() -> Response:
    """The process runs and answers. It looks at nothing else: whoever restarts what is unhealthy mends no database."""
    return plain({"status": "ok"})


@router.head("/readyz", **operation(None, also={503: None}))
@router.get("/readyz", **operation(messages.Readiness, also={503: messages.Readiness}))
def get_readiness(request: Request) -> Response:
    """200 when requests can be served, 503 when not: what was looked at, and whether it is in order; how long ago the
    loop that moves rounds, and every unfinished round, had its last good tick."""
    found = service(request).ready
    return plain(asdict(found) | {"status": found.status}, 200 if found.status == "ready" else 503)


@router.get("/metrics", **for_operators(METRICS))
def get_metrics(request: Request) -> Response:
    """Prometheus metrics, in its text format."""
    server = service(request)
    with server.database.read() as connection:
        server.metrics.devices.set(count_devices(connection))
        counts = count_by_state(connection)
    server.metrics.ticks.seen = server.seen()
    for state in RoundState:
        server.metrics.rounds.labels(state).set(counts.get(state, 0))
    return Response(server.metrics.text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", **operation(DOCUMENT))
def get_openapi(request: Request) -> Response:
    """This interface as an OpenAPI document."""
    return plain(request.app.openapi())
