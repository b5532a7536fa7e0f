"""A request the server refuses, as data: status for HTTP, code for programs, detail for people, field: the culprit."""

from __future__ import annotations

from device_sdk.errors import ProtocolError

__all__ = ["Refusal"]


class Refusal(ProtocolError):
    """Raised anywhere below a route; answered as :class:`device_sdk.wire.messages.Problem`."""

    def __init__(self, status: int, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
