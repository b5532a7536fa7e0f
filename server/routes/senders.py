"""Who a signed request is from, and whether its message is about them."""

from __future__ import annotations

from fastapi import Request

from server.devices.authentication import Sender, authenticate, read_claim
from server.problems import Refusal
from server.requests import check_device_rate
from server.routes.bodies import service
from server.service import Service

__all__ = ["check_addressed", "check_claimed", "sender_of"]


def sender_of(own: Service, request: Request, body: bytes, round_id: str | None) -> Sender:
    """The verified sender of a request, who does not ask too often. Raises Refusal (401, 403 or 429)."""
    with own.database.read() as connection:
        sender = authenticate(
            connection,
            request.headers,
            method=request.method,
            path=request.scope["path"],
            round_id=round_id,
            body=body,
            now=own.settings.clock(),
            window=own.settings.window_seconds,
        )
    # Counted once the signature is known to be good: nobody can use up another's share.
    check_device_rate(request.scope, sender.device_id, own.device_rates, own.metrics)
    return sender


def check_claimed(request: Request) -> None:
    """Before a body is read: whoever names no enrolled device sends none. Raises Refusal (401 or 403)."""
    own = service(request)
    with own.database.read() as connection:
        read_claim(connection, request.headers, now=own.settings.clock(), window=own.settings.window_seconds)


def check_addressed(sender: Sender, round_id: str, device_found: str, round_found: str) -> None:
    """Raises Refusal: 403 ``other_device``, 422 ``other_round``."""
    if device_found != sender.device_id:
        raise Refusal(403, "other_device", "device_id: differs from the device that signed", "device_id")
    if round_found != round_id:
        detail = f"round_id: found {round_found}, the address says {round_id[:64]}"
        raise Refusal(422, "other_round", detail, "round_id")
