"""Who a signed request is from, and whether its message is about them."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request
from sqlalchemy import Connection

from server.devices.authentication import Sender, authenticate, check_body
from server.problems import Refusal
from server.rounds.reports import accepted_size, check_open
from server.rounds.secure_aggregation.answers import check_sender
from server.rounds.store import find_round, read_settings
from server.service import Service
from server.web.middleware import check_rate


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


def check_aggregating(server: Service, request: Request) -> None:
    """As :func:`check_claimed`, for a stage of secure aggregation: its round has to be there and to have some, and the
    device to be in it. Raises Refusal also: 404 ``unknown_round``, 409 ``not_collected``, ``round_closed``,
    ``not_joined``."""
    with server.database.read() as connection:
        sender = _prove(server, request, connection)
        row = find_round(connection, request.path_params["round_id"])
        check_sender(connection, row, sender.device_id, request.path_params["stage"], server.settings.clock())


def _prove(server: Service, request: Request, connection: Connection) -> Sender:
    path, round_id = request.scope["path"], request.path_params.get("round_id")
    when = {"now": server.settings.clock(), "window": server.settings.window_seconds}
    sender = authenticate(connection, request.headers, method=request.method, path=path, round_id=round_id, **when)
    request.state.sender, request.state.proved = sender, True
    # Counted once the signature is known to be good: nobody can use up another's share.
    check_rate(request.scope, "device", server.device_rates, server.metrics, sender.device_id)
    return sender


def check_addressed(sender: Sender, round_id: str, device_found: str, round_found: str) -> None:
    """Raises Refusal: 403 ``other_device``, 422 ``other_round``."""
    if device_found != sender.device_id:
        raise Refusal(403, "other_device", "device_id: differs from the device that signed", "device_id")
    if round_found != round_id:
        detail = f"round_id: found {round_found}, the address says {round_id[:64]}"
        raise Refusal(422, "other_round", detail, "round_id")
