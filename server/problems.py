"""A request the server refuses, as data: status for HTTP, code for programs, detail for people, field: the culprit."""

from device_sdk.errors import ProtocolError


class Refusal(ProtocolError):
    """Raised anywhere below a route; answered as :class:`device_sdk.wire.messages.Problem`. retry_after: seconds after
    which the same request may be answered, None where that is not known."""

    def __init__(
        self, status: int, code: str, detail: str, field: str | None = None, *, retry_after: int | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """That go with the answer."""
        found = {}
        if self.status == 401 and self.field == "Authorization":
            found["WWW-Authenticate"] = "Bearer"
        if self.retry_after is not None:
            found["Retry-After"] = str(self.retry_after)
        return found
