"""What a server answers when it says no."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from pydantic import ValidationError

from device_sdk.errors import CheckInError
from device_sdk.wire.messages import Problem

__all__ = ["PROBLEM_BYTES", "RETRIED", "UNKNOWN", "Refused", "refusal"]

UNKNOWN = "unknown"
"""Code of a refusal that is no Problem: something between device and server answered, or another server did."""
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
PROBLEM_BYTES = 1 << 16
"""Of an answer that is an error."""


class Refused(CheckInError):
    """The server answered and said no. status: HTTP status; code: the stable code of its Problem; server_time: by its
    clock, seconds since the epoch, where it says so."""

    def __init__(self, message: str, status: int, code: str, server_time: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.server_time = server_time

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int, str, float | None]]:
        # Exceptions are copied, and brought home from worker processes, from their arguments.
        return type(self), (str(self), self.status, self.code, self.server_time)


def refusal(where: str, status: int, content: bytes, date: str = "") -> Refused:
    """An answer that is an error, by what its Problem says. where: who said it, for the message; date: the header."""
    try:
        problem = Problem.model_validate_json(content)
    except ValidationError:
        return Refused(f"{where}: refused with status {status}, without a reason", status, UNKNOWN)
    field = f"{problem.field}: " if problem.field else ""
    message = f"{where}: refused with status {status}, {problem.code}: {field}{problem.detail}"
    return Refused(message, status, problem.code, _server_time(date))


def _server_time(date: str) -> float | None:
    try:
        return parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None
