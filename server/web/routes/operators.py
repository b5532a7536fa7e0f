"""The routes operators use, each behind the role that :mod:`server.web.routes.authorization` gives it: rounds, models,
marginals, rollouts; who may operate, who may enrol, and what operators did."""

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
from server.devices.enrolment import (
    add_enrolment_token,
    count_devices,
    list_devices,
    list_enrolment_tokens,
    revoke,
    revoke_enrolment_token,
)
from server.operators import accounts, messages
from server.operators.accounts import list_actions, record
from server.plans.round import STREAMS, RolloutSettings
from server.privacy import ledger
from server.registry import marginals as marginal_registry
from server.registry import models as model_registry
from server.registry.models import current_version, history, publish
from server.registry.retention import check_marginals_present, check_present
from server.rounds.rollout import conduct
from server.rounds.store import list_rounds, view
from server.web.bodies import body_reader, parse, plain, refused, service
from server.web.operations import WEIGHTS, for_operators
from server.web.routes.authorization import acting, operator_of

router = APIRouter(prefix="/v1/operator")

Small = Annotated[bytes, Depends(body_reader(lambda its: its.settings.limits.message_bytes))]
Limit = Annotated[int, Query(ge=1, le=1000)]
Weights = Annotated[bytes, Depends(body_reader(lambda its: its.settings.limits.model_bytes))]

UNFIT_ROUND = "422 no_privacy no_rehearsal privacy_cap too_many_values"
OPENING = ("409 round_open no_devices privacy_cap",)
MOVING = ("404 unknown_round", "409 wrong_state")
MARGINALS = ("404 unknown_marginals", "410 marginals_removed")
ROLLOUT = ("404 unknown_model", "409 rollout_running is_current", "410 model_removed")


@router.get("/status", **for_operators(messages.Status))
def get_status(request: Request) -> Response:
    return plain(service(request).status())


@router.get("/privacy", **for_operators(messages.Privacy))
def get_privacy(request: Request) -> Response:
    server = service(request)
    with server.database.read() as connection:
        lines = ledger.device_summary(connection, server.settings.delta_probability)
    caps = {stream: server.settings.cap(stream) for stream in STREAMS}
    return plain({"streams": server.privacy(), "devices": lines, "caps": caps})


@router.get("/rounds", **for_operators(messages.Rounds))
def get_rounds(request: Request, limit: Limit = 100) -> Response:
    with service(request).database.read() as connection:
        return plain({"rounds": [view(connection, row) for row in list_rounds(connection, limit)]})


@router.post(
    "/rounds",
    **for_operators(messages.Round, *OPENING, UNFIT_ROUND, takes=messages.RoundRequest, status=201),
)
def post_round(request: Request, body: Small) -> Response:
    wanted = parse(messages.RoundRequest, body or b"{}")
    by = operator_of(request).name
    return plain(service(request).create_round(wanted.settings, opened=wanted.open, by=by), 201)


@router.get("/rounds/{round_id}", **for_operators(messages.Round, "404 unknown_round"))
def get_round(request: Request, round_id: str) -> Response:
    return plain(service(request).view_round(round_id))


@router.post("/rounds/{round_id}/open", **for_operators(messages.Round, *OPENING, "422 no_privacy", *MOVING))
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
        models = [model_registry.view(row) for row in model_registry.list_models(connection)]
        past = history(connection, "model")
        return plain({"current": current_version(connection, "model"), "models": models, "history": past})


@router.post(
    "/models/{version}",
    **for_operators(messages.Model, "409 version_exists", "422 bad_weights", takes=WEIGHTS, status=201),
)
def post_model(
    request: Request, version: Identifier, body: Weights, note: str = "", published: bool = True
) -> Response:
    """Register weights made elsewhere, of the current model's names and shapes, and by default publish them."""
    server = service(request)
    with server.database.read() as connection:
        parent = model_registry.find_model(connection, current_version(connection, "model"))
    shapes = {name: values.shape for name, values in model_registry.load(server.blobs, parent.sha256).items()}
    try:
        weights = parse_weights(body)
        validate_shapes(weights, shapes)
    except ProtocolError as error:
        raise refused(error, "bad_weights") from error
    stored = model_registry.store(server.blobs, weights, {"version": version})
    with acting(request, "model.push", version, note) as (connection, by, now):
        said = _said(note, "pushed", by)
        model_registry.add_model(connection, version, stored, now=now, parent=parent.version, note=said)
        if published:
            publish(connection, "model", version, now, said)
        return plain(model_registry.view(model_registry.find_model(connection, version)), 201)


@router.post("/models/{version}/publish", **for_operators(messages.Model, "404 unknown_model", "410 model_removed"))
def publish_model(request: Request, version: str, note: str = "") -> Response:
    with acting(request, "model.publish", version, note) as (connection, by, now):
        row = model_registry.find_model(connection, version)
        check_present(service(request).blobs, row)
        publish(connection, "model", version, now, _said(note, "published", by))
        return plain(model_registry.view(row))


@router.get("/marginals", **for_operators(messages.MarginalsList))
def get_all_marginals(request: Request) -> Response:
    with service(request).database.read() as connection:
        current, past = int(current_version(connection, "marginals")), history(connection, "marginals")
        found = [marginal_registry.view(row) for row in marginal_registry.list_marginals(connection)]
        return plain({"current": current, "marginals": found, "history": past})


@router.get("/marginals/{version}", **for_operators(messages.MarginalsWords, *MARGINALS))
def get_marginal(request: Request, version: int, top: Annotated[int, Query(ge=0, le=1 << 24)] = 20) -> Response:
    """One version and the words it lifts most over the background; every word where ``top`` is that many."""
    server = service(request)
    with server.database.read() as connection:
        row, first = (marginal_registry.find_marginals(connection, number) for number in (version, 0))
    check_marginals_present(row)
    probabilities, background = (marginal_registry.read_probabilities(each) for each in (row, first))
    counts = marginal_registry.read_counts(row)
    # By weight moved, not by ratio: a rare word's ratio is mostly noise.
    order = np.argsort(background - probabilities, kind="stable")[:top].tolist()
    lifted = [
        {"word_id": word, "word": server.words[word] if word < len(server.words) else None}
        | {"probability": float(probabilities[word]), "background": float(background[word])}
        | {"released_count": int(counts[word]) / FIXED_POINT}
        for word in order
    ]
    return plain(marginal_registry.view(row) | {"words": int(probabilities.size), "top": lifted})


@router.post(
    "/marginals",
    **for_operators(messages.MarginalsVersion, "422 bad_marginals", takes=messages.MarginalPush, status=201),
)
def post_marginals(request: Request, body: Weights) -> Response:
    """Register a distribution made elsewhere, and by default publish it. Released counts start again from none."""
    server = service(request)
    wanted = parse(messages.MarginalPush, body)
    now, by = server.settings.clock(), operator_of(request).name
    with server.database.write() as connection:
        parent = marginal_registry.find_marginals(connection, int(current_version(connection, "marginals")))
        words = marginal_registry.read_counts(parent).size
        try:
            probabilities = np.frombuffer(b64decode(wanted.probabilities.encode(), validate=True), "<f8")
            marginal_registry.validate_probabilities(probabilities, words)
        except (ProtocolError, ValueError) as error:
            raise refused(ProtocolError(str(error)), "bad_marginals", "probabilities") from error
        entry = marginal_registry.MarginalEntry(parent.words_digest, probabilities, np.zeros(words, np.int64), 0.0)
        version, note = marginal_registry.next_version(connection), _said(wanted.note, "pushed", by)
        marginal_registry.add_marginals(connection, version, entry, now=now, parent=parent.version, note=note)
        record(connection, by, "marginals.push", str(version), now, wanted.note)
        if wanted.publish:
            publish(connection, "marginals", version, now, note)
        return plain(marginal_registry.view(marginal_registry.find_marginals(connection, version)), 201)


@router.post("/marginals/{version}/publish", **for_operators(messages.MarginalsVersion, *MARGINALS))
def publish_marginals(request: Request, version: int, note: str = "") -> Response:
    with acting(request, "marginals.publish", str(version), note) as (connection, by, now):
        row = marginal_registry.find_marginals(connection, version)
        check_marginals_present(row)
        publish(connection, "marginals", version, now, _said(note, "published", by))
        return plain(marginal_registry.view(row))


@router.get("/rollout", **for_operators(messages.Rollouts))
def get_rollout(request: Request) -> Response:
    server = service(request)
    now = server.settings.clock()
    with server.database.read() as connection:
        running = conduct.running(connection)
        found = [conduct.view(connection, row, now) for row in conduct.list_rollouts(connection)]
    return plain({"running": None if running is None else running.version, "rollouts": found})


@router.post("/rollout", **for_operators(messages.Rollout, *ROLLOUT, takes=messages.RolloutRequest, status=201))
def post_rollout(request: Request, body: Small) -> Response:
    """Answers with the rollout. Its devices get the model with their next check-in."""
    server, wanted = service(request), parse(messages.RolloutRequest, body)
    with acting(request, "rollout.begin", wanted.version, wanted.note) as (connection, by, now):
        check_present(server.blobs, model_registry.find_model(connection, wanted.version))
        given = {} if wanted.settings is None else wanted.settings.model_dump(exclude_unset=True)
        settings = (server.settings.rollout or RolloutSettings()).model_copy(update=given)
        conduct.begin(connection, wanted.version, settings, now, wanted.note[:500] or f"begun by {by}")
        return plain(conduct.view(connection, conduct.require_running(connection), now), 201)


@router.post("/rollout/promote", **for_operators(messages.Rollout, "409 no_rollout worse", "410 model_removed"))
def post_promote(request: Request, note: str = "", force: bool = False) -> Response:
    """Answers when held-out speech was heard, where the server has some."""
    return plain(service(request).promote_rollout(note, force=force, by=operator_of(request).name))


@router.post("/rollout/roll-back", **for_operators(messages.Rollout, "409 no_rollout"))
def post_roll_back(request: Request, note: str = "") -> Response:
    server = service(request)
    return plain(conduct.roll_back(server.database, server.settings.clock(), operator_of(request).name, note))


@router.get("/me", **for_operators(messages.Me))
def get_me(request: Request) -> Response:
    """Whose token this is, and what it may do."""
    found = operator_of(request)
    return plain({"name": found.name, "role": found.role})


@router.get("/operators", **for_operators(messages.Operators))
def get_operators(request: Request) -> Response:
    """Named operators, those who were revoked too."""
    with service(request).database.read() as connection:
        return plain({"operators": [_without(row, "token_sha256") for row in accounts.list_operators(connection)]})


@router.post(
    "/operators", **for_operators(messages.OperatorMade, "409 name_taken", takes=messages.OperatorRequest, status=201)
)
def post_operator(request: Request, body: Small) -> Response:
    """Add an operator. The token is in the answer and nowhere else."""
    wanted = parse(messages.OperatorRequest, body)
    with acting(request, "operator.add", wanted.name, wanted.role) as (connection, by, now):
        token = accounts.add_operator(connection, wanted.name, wanted.role, by, now)
        return plain(_named(accounts.list_operators(connection), wanted.name) | {"token": token}, 201)


@router.post("/operators/{name}/revoke", **for_operators(messages.OperatorEntry, "404 unknown_operator"))
def post_revoke_operator(request: Request, name: str) -> Response:
    """Refuse an operator's token, and the web pages opened with it, from now on."""
    with acting(request, "operator.revoke", name) as (connection, _, now):
        accounts.revoke_operator(connection, name, now)
        return plain(_named(accounts.list_operators(connection), name))


@router.get("/enrolment-tokens", **for_operators(messages.EnrolmentTokens))
def get_enrolment_tokens(request: Request) -> Response:
    """Tokens that let devices enrol, the newest first; the server's own is not among them."""
    with service(request).database.read() as connection:
        return plain({"enrolment_tokens": [_without(row, "token_sha256") for row in list_enrolment_tokens(connection)]})


@router.post(
    "/enrolment-tokens",
    **for_operators(messages.EnrolmentTokenMade, "409 name_taken", takes=messages.EnrolmentTokenRequest, status=201),
)
def post_enrolment_token(request: Request, body: Small) -> Response:
    """Make a token that lets devices enrol. It is in the answer and nowhere else."""
    wanted = parse(messages.EnrolmentTokenRequest, body)
    with acting(request, "enrolment.add", wanted.name) as (connection, by, now):
        expires_at = None if wanted.seconds is None else now + wanted.seconds
        token = add_enrolment_token(connection, wanted.name, by, now, uses=wanted.uses, expires_at=expires_at)
        return plain(_named(list_enrolment_tokens(connection), wanted.name) | {"token": token}, 201)


@router.post(
    "/enrolment-tokens/{name}/revoke", **for_operators(messages.EnrolmentTokenEntry, "404 unknown_enrolment_token")
)
def post_revoke_enrolment_token(request: Request, name: str) -> Response:
    """Let nobody in with a token any more. Devices that it let in stay."""
    with acting(request, "enrolment.revoke", name) as (connection, _, now):
        revoke_enrolment_token(connection, name, now)
        return plain(_named(list_enrolment_tokens(connection), name))


@router.get("/devices", **for_operators(messages.Devices))
def get_devices(request: Request, after: Annotated[str, Query(max_length=64)] = "", limit: Limit = 100) -> Response:
    """Enrolled devices by id, a page at a time."""
    with service(request).database.read() as connection:
        found = [_without(row, "public_key") for row in list_devices(connection, after, limit)]
        listed = [{"device_id": entry.pop("id"), **entry} for entry in found]
        return plain({"count": count_devices(connection), "devices": listed})


@router.post("/devices/{device_id}/revoke", **for_operators(messages.DeviceRevoked, "404 unknown_device"))
def post_revoke_device(request: Request, device_id: str) -> Response:
    """Refuse everything that a device sends from now on. What it was counted for stays counted."""
    with acting(request, "device.revoke", device_id) as (connection, _, now):
        revoke(connection, device_id, now)
    return plain({"device_id": device_id, "revoked": True})


@router.get("/actions", **for_operators(messages.Actions))
def get_actions(request: Request, limit: Limit = 100) -> Response:
    """What operators did, the newest first."""
    with service(request).database.read() as connection:
        return plain({"actions": [_without(row, "id") for row in list_actions(connection, limit)]})


def _said(note: str, done: str, by: str) -> str:
    """What is kept with a version: the operator's own words, and who it was."""
    return f"{note[:500]} ({done} by {by})" if note else f"{done} by {by}"


def _named(rows: list[Row[Any]], name: str) -> dict[str, Any]:
    return next(_without(row, "token_sha256") for row in rows if row.name == name)


def _without(row: Row[Any], hidden: str) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != hidden}
