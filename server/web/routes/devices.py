"""The routes devices use: :mod:`device_sdk.wire.messages` and :mod:`device_sdk.wire.secure_aggregation` list them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar
from uuid import uuid4

from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel
from sqlalchemy import Connection
from starlette.types import Message, Receive, Scope, Send

from device_sdk.errors import ProtocolError
from device_sdk.wire.messages import (
    CheckedIn,
    CheckIn,
    DeltaHeader,
    Enrol,
    Enrolled,
    MarginalReport,
    Marginals,
    Receipt,
    WordReport,
)
from device_sdk.wire.secure_aggregation import AggregationTask, KeyAdvertisement, Stage, StageReceipt
from server.aggregation.validation import read_delta, validate_counts, validate_words
from server.aggregation.weights_file import read_metadata
from server.devices.authentication import Sender, authenticate, check_body, spend_nonce
from server.devices.enrolment import enrol, find_enrolment_token, read_public_key, same_secret
from server.privacy.composition import run_unhurried
from server.problems import Refusal
from server.registry import marginals as marginal_registry
from server.registry import models as model_registry
from server.registry.differences import find_way
from server.registry.retention import check_marginals_present, check_present
from server.rounds import check_in as checking
from server.rounds.reports import Contribution, accept, accepted_size, check_base, check_open, find_report
from server.rounds.secure_aggregation import answers
from server.rounds.secure_aggregation.answers import check_sender
from server.rounds.store import find_round, read_settings
from server.service import Service
from server.web.bodies import answer, body_reader, parse, problem, refused, service, upload_reader
from server.web.middleware import check_rate
from server.web.operations import BODY, FILE, REPORT, SIGNED, WEIGHTS, Bytes, operation

Sent = TypeVar("Sent", bound=BaseModel)


def sender_of(request: Request, body: bytes) -> Sender:
    """The sender of a request, verified before its body was read. Raises Refusal (401) for another body."""
    sender: Sender = request.state.sender
    check_body(body, sender)
    return sender


def check_claimed(server: Service, request: Request) -> None:
    """Before a body is read: whoever names no enrolled device sends none, nor who signs wrongly or asks too often.
    Raises Refusal (401, 403 or 429)."""
    with server.database.read() as connection:
        _prove(server, request, connection)


def check_enrolling(server: Service, request: Request) -> None:
    """Before a body is read: an address enrols so many devices and then waits. Raises Refusal (429)."""
    check_rate(request.scope, "enrolment", server.enrolment_rates, server.metrics)


def taking(stream: str) -> Callable[[Service, Request], int | None]:
    """As :func:`check_claimed`, for a report of a stream: its round has to be there, and to take it still. Returns how
    many bytes it may have, where its plan says that. Raises Refusal also: 404 ``unknown_round``, 409 ``round_closed``,
    ``not_collected``. What it is refused for later is looked at again when all of it is there."""

    def check(server: Service, request: Request) -> int | None:
        with server.database.read() as connection:
            sender = _prove(server, request, connection)
            row = find_round(connection, request.path_params["round_id"])
            settings = read_settings(row)
            if row.forgotten:  # every report of it is answered as a duplicate
                return None
            small = server.settings.limits.message_bytes
            known = accepted_size(connection, sender.device_id, row.id, stream)
            if known is not None:  # it may be the same once more, where the receipt was lost
                return max(small, known)
            check_open(row, settings, stream, server.settings.clock())
        plan = settings.marginals
        if stream == "marginals" and plan is not None and plan.trust == "central" and plan.mode == "bounded":
            return small  # holds a thousand words, the most that a plan has
        return None

    return check


def check_aggregating(server: Service, request: Request) -> int:
    """As :func:`check_claimed`, for a stage of secure aggregation: its round has to be there and to have some, and the
    device to be in it. Returns how many bytes a message of the stage has at most. Raises Refusal also: 404
    ``unknown_round``, 409 ``not_collected``, ``round_closed``, ``not_joined``."""
    with server.database.read() as connection:
        sender = _prove(server, request, connection)
        row = find_round(connection, request.path_params["round_id"])
        most = check_sender(connection, row, sender.device_id, request.path_params["stage"], server.settings.clock())
        request.state.stream = read_settings(row).aggregated
        return max(most, server.settings.limits.message_bytes)


def _prove(server: Service, request: Request, connection: Connection) -> Sender:
    path, round_id = request.scope["path"], request.path_params.get("round_id")
    when = {"now": server.settings.clock(), "window": server.settings.window_seconds}
    sender = authenticate(connection, request.headers, method=request.method, path=path, round_id=round_id, **when)
    request.state.sender, request.state.proved = sender, True
    # Counted once the signature is known to be good: nobody can use up another's share.
    check_rate(request.scope, "device", server.device_rates, server.metrics, sender.device_id)
    return sender


def received(request: Request, body: bytes, kind: type[Sent], round_id: str) -> tuple[Service, Sender, Sent]:
    """The server, and who sends what to a round. Raises Refusal: 401, 422, and as :func:`check_addressed`."""
    sender, message = sender_of(request, body), parse(kind, body)
    check_addressed(sender, round_id, message)
    return service(request), sender, message


def check_addressed(sender: Sender, round_id: str, message: Any) -> None:
    """Raises Refusal: 403 ``other_device``, 422 ``other_round``."""
    if message.device_id != sender.device_id:
        raise Refusal(403, "other_device", "device_id: differs from the device that signed", "device_id")
    if message.round_id != round_id:
        detail = f"round_id: found {message.round_id}, the address says {round_id[:64]}"
        raise Refusal(422, "other_round", detail, "round_id")


router = APIRouter(prefix="/v1")

Enrolments = Annotated[bytes, Depends(body_reader(lambda its: its.settings.limits.message_bytes, check_enrolling))]
Small = Annotated[bytes, Depends(body_reader(lambda its: its.settings.limits.message_bytes, check_claimed))]
Counts = Annotated[bytes, Depends(upload_reader(lambda its: its.settings.limits.report_bytes, taking("marginals")))]
Words = Annotated[bytes, Depends(upload_reader(lambda its: its.settings.limits.report_bytes, taking("words")))]
Stages = Annotated[bytes, Depends(upload_reader(lambda its: its.settings.limits.report_bytes, check_aggregating))]
Delta = Annotated[bytes, Depends(upload_reader(lambda its: its.delta_bytes, taking("deltas")))]


DELTA = Bytes("A delta: safetensors bytes whose metadata has a DeltaHeader as JSON under `header`.")
STAGE = Bytes("A message of a stage: the fields of the class of its name in `device_sdk.wire`, one after the other.")
DIFFERENCE = Bytes("What makes the weights of one version of those of another.")
METADATA = Bytes("Signed metadata of The Update Framework, exact bytes.", "application/json")
ENROLMENT = ("401 bad_token", "403 device_revoked token_revoked token_expired token_used_up", "422 bad_key")
ACCEPTANCE = (*REPORT, "403 privacy_cap", "409 already_reported other_words report_conflict", "422 utterances")
UNFIT_STAGE = ("403 excluded privacy_cap", "409 busy message_conflict not_joined other_stage other_words stale_model")
UNFIT = ("409 stale_model", "422 bad_delta other_plan too_few_utterances too_many_utterances")


@router.post("/enrol", **operation(Enrolled, *ENROLMENT, *BODY, takes=Enrol))
def post_enrol(request: Request, body: Enrolments) -> Response:
    server = service(request)
    message = parse(Enrol, body)
    token = None if same_secret(message.token, server.settings.enrolment_token) else message.token
    if token is not None:  # looked for before anything is written
        with server.database.read() as connection:
            find_enrolment_token(connection, token)
    public_key = read_public_key(message)
    with server.database.write() as connection:
        now, uses = server.settings.clock(), server.settings.enrolment_uses
        return answer(Enrolled(device_id=enrol(connection, public_key, now, token, uses)))


@router.post("/check-in", **operation(CheckedIn, *SIGNED, takes=CheckIn))
def post_check_in(request: Request, body: Small) -> Response:
    server = service(request)
    who = (sender_of(request, body), parse(CheckIn, body), server.fleet)
    return answer(run_unhurried(checking.check_in, server.database, server.settings, server.caps, *who))


@router.post("/rounds/{round_id}/marginals", **operation(Receipt, "422 bad_counts", *ACCEPTANCE, takes=MarginalReport))
def post_marginals(request: Request, round_id: str, body: Counts) -> Response:
    server, sender, report = received(request, body, MarginalReport, round_id)
    with server.database.read() as connection:
        plan = read_settings(find_round(connection, round_id)).marginals
        known = marginal_registry.find_marginals(connection, 0)
    if plan is not None:
        if report.words_digest != known.words_digest:
            raise Refusal(409, "other_words", "words_digest: counts are over another word list", "words_digest")
        try:
            validate_counts(report.counts, marginal_registry.read_probabilities(known).size, plan)
        except ProtocolError as error:
            raise refused(error, "bad_counts", "counts") from error
    own = Contribution(report.report_id, round_id, "marginals", body, report.utterances, counts=report.counts)
    return _accept(server, sender, own)


@router.post("/rounds/{round_id}/deltas", **operation(Receipt, *UNFIT, *ACCEPTANCE, takes=DELTA))
def post_deltas(request: Request, round_id: str, body: Delta) -> Response:
    server = service(request)
    sender = sender_of(request, body)
    try:
        metadata = read_metadata(body)
    except ProtocolError as error:
        raise refused(error, "bad_delta") from error
    header = parse(DeltaHeader, metadata.get("header", ""))
    check_addressed(sender, round_id, header)
    with server.database.read() as connection:
        known = find_report(connection, sender.device_id, header.report_id)
        row = find_round(connection, round_id)
        base = model_registry.find_model(connection, row.base_model) if row.base_model is not None else None
    plan = read_settings(row).deltas
    if plan is not None and plan.trust == "distributed":
        clear = "found a delta in the clear; this round takes them under secure aggregation only"
        raise Refusal(422, "other_plan", f"trust: {clear}", "trust")
    blob: str | None = None
    # A repeat, a closed round or a stream that is not collected is settled by ``accept``, without reading the values.
    if known is None and plan is not None and base is not None and row.state == "open":
        check_base(row, header.model_version)
        if header.utterances < plan.minimum_utterances:
            detail = f"utterances: found {header.utterances}, expected at least {plan.minimum_utterances}"
            raise Refusal(422, "too_few_utterances", detail, "utterances")
        asked = {field: getattr(plan, field) for field in ("kind", "encoding", "scale_per")}
        wrong = [field for field, wanted in asked.items() if getattr(header, field) != wanted]
        measures = ("loss", "word_error")
        wrong += [field for field in measures if (getattr(header, field) is not None) != (plan.measure == field)]
        if wrong:
            found, wanted = getattr(header, wrong[0]), asked.get(wrong[0], plan.measure)
            raise Refusal(422, "other_plan", f"{wrong[0]}: found {found}, the round asks for {wanted}", wrong[0])
        if plan.kind == "gradient" and header.utterances > plan.batch_size:
            detail = f"utterances: found {header.utterances}, a gradient is of at most {plan.batch_size}"
            raise Refusal(422, "too_many_utterances", detail, "utterances")
        try:
            read_delta(body, server.shapes(base.sha256, plan.part), plan)
        except ProtocolError as error:  # begins with the name of the tensor
            raise refused(error, "bad_delta", str(error).partition(": ")[0]) from error
        blob = f"deltas/{round_id}/{uuid4().hex}.safetensors"
        server.blobs.put(blob, body)
    own = Contribution(header.report_id, round_id, "deltas", body, header.utterances, blob=blob)
    of = replace(own, model_version=header.model_version, loss=header.loss, word_error=header.word_error)
    return _accept(server, sender, of)


@router.post("/rounds/{round_id}/words", **operation(Receipt, "422 bad_words", *ACCEPTANCE, takes=WordReport))
def post_words(request: Request, round_id: str, body: Words) -> Response:
    server, sender, report = received(request, body, WordReport, round_id)
    with server.database.read() as connection:
        plan = read_settings(find_round(connection, round_id)).words
        digest = marginal_registry.find_marginals(connection, 0).words_digest
    if plan is not None:
        if report.words_digest != digest:
            raise Refusal(409, "other_words", "words_digest: another word list lacks these words", "words_digest")
        try:
            validate_words(report.words, server.listed, plan)
        except ProtocolError as error:
            raise refused(error, "bad_words", "words") from error
    named = dict.fromkeys(report.words, 1)
    return _accept(server, sender, Contribution(report.report_id, round_id, "words", body, 0, counts=named))


@router.post("/rounds/{round_id}/aggregation", **operation(AggregationTask, *REPORT, "409 not_joined"))
def post_poll(request: Request, round_id: str, body: Small) -> Response:
    server, sender = service(request), sender_of(request, body)
    if body:
        raise Refusal(422, "bad_message", f"body: found {len(body)} bytes, expected none", "body")
    with server.database.write() as connection:
        spend_nonce(connection, sender, server.settings.clock())
        return answer(answers.next_task(connection, sender.device_id, round_id, server.settings.retry_after_seconds))


@router.post("/rounds/{round_id}/aggregation/{stage}", **operation(StageReceipt, *REPORT, *UNFIT_STAGE, takes=STAGE))
def post_stage(request: Request, round_id: str, stage: Stage, body: Stages) -> Response:
    server, sender = service(request), sender_of(request, body)
    settings = server.settings
    try:
        message = answers.MESSAGES[stage].read(body, sender.device_id, round_id)
    except ProtocolError as error:
        raise refused(error, "bad_message", str(error).partition(": ")[0]) from error

    def work() -> tuple[StageReceipt, bool]:
        with server.database.write() as connection:
            now = settings.clock()
            if isinstance(message, KeyAdvertisement):
                return answers.join(connection, sender, message, caps=server.caps, shapes=server.shapes, now=now)
            return answers.answer(connection, sender, message, now=now)

    try:
        receipt, wake = run_unhurried(work)
    except Refusal:
        _count(server, request, stage, "refused")
        raise
    _count(server, request, stage, "duplicate" if receipt.duplicate else "accepted")
    server.metrics.received.labels(request.state.stream).inc(len(body))
    if wake:
        server.wake()
    return answer(receipt)


@router.get("/models/{version}", **operation(WEIGHTS, *FILE, also={206: WEIGHTS, 304: None}))
def get_model(request: Request, version: str) -> Response:
    """Weights as safetensors bytes; the ETag is their sha256. Ranges are served, so a download can be resumed."""
    server = service(request)
    with server.database.read() as connection:
        row = model_registry.find_model(connection, version)
    check_present(server.blobs, row)
    etag = f'"{row.sha256}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    path = server.blobs.file(model_registry.blob_name(row.sha256))
    return Download(path, headers={"ETag": etag}, media_type="application/octet-stream")


@router.get(
    "/models/{version}/from/{base}",
    **operation(DIFFERENCE, "404 no_difference", *FILE, also={206: DIFFERENCE, 304: None}),
)
def get_difference(request: Request, version: str, base: str) -> Response:
    """What makes the weights of ``version`` of those of ``base``, where there is a short way: from what was published
    lately to what is current. Else 404: take all of it. Ranges are served."""
    server = service(request)
    with server.database.read() as connection:
        way = find_way(connection, version, base)
    if request.headers.get("if-none-match") == way.etag:
        return Response(status_code=304, headers={"ETag": way.etag})
    return Download(server.differences.file(way), headers={"ETag": way.etag}, media_type="application/octet-stream")


@router.get(
    "/marginals/{version}", **operation(Marginals, "404 unknown_marginals", "410 marginals_removed", also={304: None})
)
def get_marginals(request: Request, version: int) -> Response:
    """Marginals; the ETag is the sha256 of the probabilities' bytes."""
    with service(request).database.read() as connection:
        row = marginal_registry.find_marginals(connection, version)
    check_marginals_present(row)
    etag = f'"{row.sha256}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    return answer(marginal_registry.message(row), headers={"ETag": etag})


@router.get("/updates/{name}", **operation(METADATA, "404 unknown_metadata"))
def get_update_metadata(request: Request, name: str) -> Response:
    """``timestamp.json``, ``{version}.root.json``, ``{version}.snapshot.json`` or ``{version}.targets.json``."""
    server = service(request)
    found = server.updates.document(name) if server.updates is not None else None
    if found is None:
        raise Refusal(404, "unknown_metadata", f"updates: no {name[:64]!r} here", "name")
    caching = "no-cache" if name == "timestamp.json" else "public, max-age=31536000, immutable"
    return Response(found, headers={"Cache-Control": caching}, media_type="application/json")


def _accept(server: Service, sender: Sender, contribution: Contribution) -> Response:
    stream, clock = contribution.stream, server.settings.clock
    try:
        receipt, full = run_unhurried(accept, server.database, sender, contribution, caps=server.caps, clock=clock)
    except Refusal:
        server.metrics.reports.labels(stream, "refused").inc()
        _drop(server, contribution)
        raise
    # After any other error the blob stays: the transaction may have been stored. Start-up removes what nobody needs.
    if receipt.duplicate:
        _drop(server, contribution)
    server.metrics.reports.labels(stream, "duplicate" if receipt.duplicate else "accepted").inc()
    server.metrics.received.labels(stream).inc(len(contribution.body))
    if full:
        server.wake()
    return answer(receipt)


def _count(server: Service, request: Request, stage: Stage, outcome: str) -> None:
    """A masked vector is a device's report; its other messages make that possible."""
    if stage == "masked":
        server.metrics.reports.labels(request.state.stream, outcome).inc()


def _drop(server: Service, contribution: Contribution) -> None:
    if contribution.blob is not None:
        server.blobs.delete(contribution.blob)


class Download(FileResponse):
    """A file, or the ranges of it that were asked for. What cannot be had is refused by a Problem: 400 or 416
    ``bad_range``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Message | None = None

        async def watch(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, watch)
        if refused is not None:
            told = {name.decode(): value.decode() for name, value in refused["headers"] if name == b"content-range"}
            detail = "Range: cannot be read, expected bytes=FIRST-LAST"
            if refused["status"] != 400:
                within = told.get("content-range")
                detail = f"Range: found nothing to send for it, expected bytes=FIRST-LAST within {within}"
            await problem(Refusal(refused["status"], "bad_range", detail, "Range"), told)(scope, receive, send)
