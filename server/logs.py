"""What the server logs: lines for people, or JSON objects for programs. Neither holds what a device or a user sent.

An error's own words may quote what it choked on, so only those of the project's own state and settings are logged; of
any other error a line has its type and where it came from."""

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from device_sdk.errors import ConfigurationError, MissingExtraError, StateError

REQUEST: ContextVar[str | None] = ContextVar("request", default=None)
"""Id of the request that is being answered: drawn here, told in ``X-Request-ID``, and in every line about it."""

_OWN_WORDS = (ConfigurationError, MissingExtraError, StateError)
_QUIET = ("alembic", "httpx", "uvicorn.access")


def configure(form: str, *, verbose: bool = False) -> None:
    """Have everything that is logged written to standard error. form: ``text`` or ``json``. verbose: a line for every
    request that was answered, and what the server makes of it step by step, at DEBUG."""
    handler = _StandardError()
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    root = logging.getLogger()
    root.handlers[:] = [*(other for other in root.handlers if not isinstance(other, _StandardError)), handler]
    root.setLevel(logging.INFO)
    for chatty in _QUIET:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("idiolect.server").setLevel(logging.DEBUG if verbose else logging.NOTSET)
    logging.getLogger("idiolect.requests").setLevel(logging.INFO if verbose else logging.WARNING)


def fields(**values: Any) -> dict[str, Any]:
    """``extra`` of a log call: names and values that a JSON line has beside its message."""
    return {"fields": values}


class Lines(logging.Formatter):
    """One line a record, and the frames of an error below it."""

    def format(self, record: logging.LogRecord) -> str:
        named = [f"{name}={value}" for name, value in _fields(record).items()]
        parts = (_time(record), record.levelname, record.name, record.getMessage(), *named)
        return "\n".join([" ".join(parts), *_error(record)])


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, request, the call's own fields, error."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage()}
        error = _error(record)
        return json.dumps(line | _fields(record) | ({"error": error} if error else {}), default=str)


class _StandardError(logging.Handler):
    """Writes to what standard error is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """The request that it is about, and what the call itself has named."""
    request = REQUEST.get()
    named: dict[str, Any] = getattr(record, "fields", {})
    return named if request is None else {"request": request} | named


def _error(record: logging.LogRecord) -> list[str]:
    error = record.exc_info[1] if record.exc_info is not None else None
    return [] if error is None else _lines_of(error)


def _lines_of(error: BaseException) -> list[str]:
    """An error, those that it holds, and the one that it came from; each with its frames, the innermost last."""
    words = f": {error}" if isinstance(error, _OWN_WORDS) else ""
    lines = [f"{type(error).__module__}.{type(error).__qualname__}{words}"]
    lines += [
        f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)
    ]
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            lines += _lines_of(inner)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines += ["from", *_lines_of(cause)]
    return lines
