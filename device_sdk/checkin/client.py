"""One server over HTTP: signed requests, retries with backoff, clear errors, bytes counted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from hashlib import sha256
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from device_sdk.checkin.identity import Identity, signed_headers
from device_sdk.checkin.outbox import Outgoing
from device_sdk.errors import CheckInError
from device_sdk.wire.messages import CheckedIn, CheckIn, Enrol, Enrolled, Marginals, Message, Problem, Receipt
from device_sdk.wire.secure_aggregation import AggregationPoll, AggregationTask, Stage, StageReceipt

if TYPE_CHECKING:
    import httpx

    from device_sdk.checkin.partial import Partial

__all__ = ["RETRIED", "UNKNOWN", "Client", "Refused", "refusal"]

UNKNOWN = "unknown"
"""Code of a refusal that is no Problem: something between device and server answered, or another server did."""

_Answer = TypeVar("_Answer", bound=Message)
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_PATIENCE = 60.0
"""Seconds: a server that asks for a longer pause is left alone until the next check-in."""
_CONTENT_TYPE = {"marginals": "application/json", "deltas": "application/octet-stream", "words": "application/json"}


class Refused(CheckInError):
    """The server answered and said no. status: HTTP status; code: the stable code of its Problem."""

    def __init__(self, message: str, status: int, code: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int, str]]:
        # Exceptions are copied, and brought home from worker processes, from their arguments.
        return type(self), (str(self), self.status, self.code)


class Client:
    """Owns the connections to one server.

    Every request may be sent again: what it carries is the same to the last byte, so the server counts it once.
    CheckInError: the server could not be reached within ``attempts`` tries, or its answer is no message of the
    protocol. Refused: it answered with an error.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        attempts: int = 3,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        import httpx

        self.url = url.rstrip("/")
        self.bytes_up = 0
        self.bytes_down = 0
        self._attempts = max(1, attempts)
        self._pause = pause
        try:
            scheme = httpx.URL(self.url).scheme
        except httpx.InvalidURL as error:
            raise CheckInError(f"{url}: not a usable server address: {error}") from error
        if scheme not in ("http", "https"):
            raise CheckInError(f"{url}: found scheme {scheme!r}, expected http or https")
        self._http = httpx.Client(timeout=timeout, transport=transport)

    def enrol(self, token: str, identity: Identity) -> str:
        """The id that the server gives this device; the same key again gets the same id."""
        body = Enrol(token=token, public_key=identity.public_key).model_dump_json().encode()
        return self._message(Enrolled, "POST", "/v1/enrol", body).device_id

    def check_in(self, identity: Identity, message: CheckIn) -> CheckedIn:
        return self._message(CheckedIn, "POST", "/v1/check-in", message.model_dump_json().encode(), signer=identity)

    def report(self, identity: Identity, outgoing: Outgoing) -> Receipt:
        """Sends a report's exact bytes. A receipt for another report is an error: the report stays in the outbox."""
        path = f"/v1/rounds/{outgoing.round_id}/{outgoing.kind}"
        receipt = self._message(
            Receipt,
            "POST",
            path,
            outgoing.body,
            signer=identity,
            round_id=outgoing.round_id,
            content_type=_CONTENT_TYPE[outgoing.kind],
        )
        if receipt.report_id != outgoing.report_id:
            raise CheckInError(
                f"{self.url}{path}: receipt: found report {receipt.report_id!r}, expected {outgoing.report_id!r}"
            )
        return receipt

    def model(self, version: str, digest: str) -> bytes:
        """Weights of a published model. CheckInError: their sha256 is not the one that the check-in announced."""
        path = f"/v1/models/{quote(version, safe='')}"
        content = self._send("GET", path, b"")
        found = sha256(content).hexdigest()
        if found != digest:
            raise CheckInError(f"{self.url}{path}: sha256: found {found}, expected {digest}; the download is dropped")
        return content

    def marginals(self, version: int) -> Marginals:
        return self._message(Marginals, "GET", f"/v1/marginals/{version}", b"")

    def download(self, path: str, limit: int, seconds: float, partial: Partial | None = None) -> bytes:
        """A public file whose length is bounded before it comes, as what is not trusted must be.

        partial: keeps what has come, so that a later call goes on from there; a line that breaks is gone on with either
        way. CheckInError: more than ``limit`` bytes, not all there within ``seconds``, or not reached. Nothing is
        decoded, so that no answer grows on the device.
        """
        from device_sdk.checkin.download import download

        return download(self, self._http, path, limit, seconds, self._attempts, partial)

    def wait(self, failures: int, asked: float = 0.0) -> None:
        """Before the next try: longer each time, spread out, and never shorter than was asked for, in seconds."""
        self._pause(asked + min(30.0, 0.5 * 2**failures) * (0.5 + random.random() / 2))

    def aggregation_task(self, identity: Identity, round_id: str) -> AggregationTask:
        """What a round's secure aggregation waits for from this device."""
        body = AggregationPoll(device_id=identity.device_id or "", round_id=round_id).model_dump_json().encode()
        path = f"/v1/rounds/{round_id}/aggregation"
        return self._message(AggregationTask, "POST", path, body, signer=identity, round_id=round_id)

    def send_stage(self, identity: Identity, round_id: str, stage: Stage, body: bytes) -> StageReceipt:
        """Sends one message of secure aggregation, exact bytes."""
        path = f"/v1/rounds/{round_id}/aggregation/{stage}"
        return self._message(StageReceipt, "POST", path, body, signer=identity, round_id=round_id)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _message(
        self,
        answer: type[_Answer],
        method: str,
        path: str,
        body: bytes,
        *,
        signer: Identity | None = None,
        round_id: str | None = None,
        content_type: str = "application/json",
    ) -> _Answer:
        content = self._send(method, path, body, signer, round_id, content_type)
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "(message)"
            raise CheckInError(
                f"{self.url}{path}: {answer.__name__}.{field}: {first['msg']}; expected protocol version 1"
            ) from error

    def _send(
        self,
        method: str,
        path: str,
        body: bytes,
        signer: Identity | None = None,
        round_id: str | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        import httpx

        url = httpx.URL(self.url + path)
        trouble, asked = "", 0.0
        for attempt in range(self._attempts):
            if attempt:
                self.wait(attempt, asked)
            headers = {"Content-Type": content_type} if body else {}
            if signer is not None:
                headers |= signed_headers(signer, method, url.path, round_id, body)
            try:
                answer = self._http.request(method, url, content=body, headers=headers)
            except httpx.HTTPError as error:
                trouble, asked = f"{type(error).__name__}: {error}", 0.0
                continue
            self.bytes_up += len(body)
            self.bytes_down += len(answer.content)
            if answer.is_success:
                return answer.content
            if answer.status_code not in RETRIED:
                raise refusal(f"{self.url}{path}", answer.status_code, answer.content)
            trouble = str(refusal("answer", answer.status_code, answer.content))
            asked = _asked(answer.headers.get("Retry-After", ""))
            if asked > _PATIENCE:
                raise CheckInError(
                    f"{self.url}{path}: the server asks for a pause of {asked:.0f} s ({trouble}); "
                    "everything is kept for the next check-in"
                )
        raise CheckInError(
            f"{self.url}{path}: no usable answer after {self._attempts} tries ({trouble}); "
            "everything is kept for the next check-in"
        )


def _asked(retry_after: str) -> float:
    """Seconds for which a server wants to be left alone, by its Retry-After; 0 where it says nothing of the kind."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 9 else 0.0


def refusal(where: str, status: int, content: bytes) -> Refused:
    """An answer that is an error, by what its Problem says. where: who said it, for the message."""
    try:
        problem = Problem.model_validate_json(content)
    except ValidationError:
        return Refused(f"{where}: refused with status {status}, without a reason", status, UNKNOWN)
    field = f"{problem.field}: " if problem.field else ""
    message = f"{where}: refused with status {status}, {problem.code}: {field}{problem.detail}"
    return Refused(message, status, problem.code)
