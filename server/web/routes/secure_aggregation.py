"""The routes of secure aggregation: :mod:`device_sdk.wire.secure_aggregation` lists them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from device_sdk.wire.secure_aggregation import AggregationPoll, AggregationTask, Stage, StageReceipt
from server.devices.authentication import spend_nonce
from server.privacy.composition import unhurried
from server.problems import Refusal
from server.rounds.secure_aggregation import answers
from server.rounds.secure_aggregation.answers import next_task
from server.service import Service
from server.web.bodies import answer, parse, service, upload_reader
from server.web.operations import REPORT, operation
from server.web.routes.devices import Small
from server.web.routes.senders import check_addressed, check_aggregating, sender_of

__all__ = ["router"]

router = APIRouter(prefix="/v1/rounds/{round_id}/aggregation")

UNFIT = ("403 excluded privacy_cap", "409 busy message_conflict not_joined other_stage other_words")
Stages = Annotated[bytes, Depends(upload_reader(lambda its: its.settings.limits.report_bytes, check_aggregating))]


@router.post("", **operation(AggregationTask, *REPORT, "409 not_joined", takes=AggregationPoll))
def post_poll(request: Request, round_id: str, body: Small) -> Response:
    server = service(request)
    sender = sender_of(request, body)
    message = parse(AggregationPoll, body)
    check_addressed(sender, round_id, message.device_id, message.round_id)
    with server.database.write() as connection:
        spend_nonce(connection, sender, server.settings.clock())
        return answer(next_task(connection, sender.device_id, round_id, server.settings.retry_after_seconds))


@router.post("/{stage}", **operation(StageReceipt, *REPORT, *UNFIT, takes=tuple(answers.MESSAGES.values())))
def post_stage(request: Request, round_id: str, stage: Stage, body: Stages) -> Response:
    server = service(request)
    sender = sender_of(request, body)
    message: Any = parse(answers.MESSAGES[stage], body)
    check_addressed(sender, round_id, message.device_id, message.round_id)
    envelope, settings = answers.Envelope(round_id, stage, message, body), server.settings

    def work() -> tuple[StageReceipt, bool]:
        with server.database.write() as connection:
            now = settings.clock()
            if stage == "keys":
                return answers.join(connection, sender, envelope, caps=server.caps, now=now)
            return answers.answer(connection, sender, envelope, now=now)

    try:
        receipt, wake = unhurried(work)
    except Refusal:
        _count(server, stage, "refused")
        raise
    _count(server, stage, "duplicate" if receipt.duplicate else "accepted")
    server.metrics.received.labels("marginals").inc(len(body))
    if wake:
        server.wake()
    return answer(receipt)


def _count(server: Service, stage: Stage, outcome: str) -> None:
    """A masked vector is a device's report; its other messages make that possible."""
    if stage == "masked":
        server.metrics.reports.labels("marginals", outcome).inc()
