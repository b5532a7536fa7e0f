"""The operator's side of a server's HTTP interface, for commands and simulations."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from device_sdk.checkin.client import refusal
from device_sdk.errors import CheckInError

if TYPE_CHECKING:
    import httpx

__all__ = ["OperatorClient"]


class OperatorClient:
    """Owns the connections of whoever runs one server. Every request raises CheckInError where the server is out of
    reach or refuses.
    """

    def __init__(
        self, server: str, token: str, *, timeout: float = 600.0, transport: httpx.BaseTransport | None = None
    ) -> None:
        """timeout: seconds; closing a round answers when its result is published, which may take minutes."""
        import httpx

        self.server = server.rstrip("/")
        self._token = token
        self._http = httpx.Client(timeout=timeout, transport=transport)

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        return self._send("GET", path, params=parameters)

    def post(self, path: str, **content: Any) -> dict[str, Any]:
        """content: httpx's json, content or params."""
        return self._send("POST", path, **content)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        import httpx

        url = f"{self.server}/v1/operator/{path}"
        if not self._token:
            raise CheckInError("no operator token; give --token or set IDIOLECT_OPERATOR_TOKEN")
        try:
            headers = {"Authorization": f"Bearer {self._token}"}
            answer = self._http.request(method, url, headers=headers, **content)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise CheckInError(f"{url}: cannot be reached ({error}); is the server running?") from error
        if answer.is_error:
            raise refusal(url, answer.status_code, answer.content)
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise CheckInError(f"{url}: found status {answer.status_code} without a JSON object; is this the server?")
        return found
