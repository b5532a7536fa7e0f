"""One server over HTTP: signed requests, retries with backoff, clear errors, bytes counted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from hashlib import sha256
from ipaddress import ip_address
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from device_sdk.checkin.connection import PROBLEM_BYTES, RETRIED, Broken, Connection, refusal
from device_sdk.checkin.download import Partial, download
from device_sdk.checkin.identity import Identity, signed_headers
from device_sdk.errors import CheckInError
from device_sdk.permit import current
from device_sdk.state.outbox import Outgoing
from device_sdk.wire.messages import CheckedIn, CheckIn, Enrol, Enrolled, Marginals, Message, Receipt
from device_sdk.wire.secure_aggregation import AggregationPoll, AggregationTask, Stage, StageReceipt

if TYPE_CHECKING:
    import httpx

__all__ = ["Client"]

_Answer = TypeVar("_Answer", bound=Message)
_MESSAGE_BYTES = 1 << 16
"""Of an answer that is a message, where nothing else is said."""
_TASK_BYTES = 8 << 20
"""Of a task of secure aggregation, which holds something of every device of a group."""
_PATIENCE = 60.0
"""Seconds: a server that asks for a longer pause is left alone until the next check-in."""
_CONTENT_TYPE = {"marginals": "application/json", "deltas": "application/octet-stream", "words": "application/json"}


class Client:
    """Owns the connections to one server.

    Every request may be sent again: what it carries is the same to the last byte, so the server counts it once.
    CheckInError: the server could not be reached within ``attempts`` tries, or its answer is no message of the
    protocol, longer than one, or too long in coming. Refused: it answered with an error."""

    slowest: int = 16_384
    """Bytes a second that a network brings at least."""

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 30.0,
        attempts: int = 3,
        transport: httpx.BaseTransport | None = None,
        pause: Callable[[float], None] | None = None,
        plain_http: bool = False,
    ) -> None:
        """timeout: seconds of a whole exchange, beside what its bytes take on the slowest network; after them it is not
        tried again. pause: sleeps between tries; None, until the check-in is ended at most. plain_http: other
        machines may be spoken to without TLS."""
        import httpx

        self.url = url.rstrip("/")
        self.bytes_up = 0
        self.bytes_down = 0
        self._attempts = max(1, attempts)
        self._pause = pause
        self._timeout = timeout
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise CheckInError(f"{url}: not a usable server address: {error}") from error
        if address.scheme not in ("http", "https") or not address.host:
            raise CheckInError(f"{url}: found scheme {address.scheme!r}, expected https, or http, and a host")
        here = _is_this_machine(address.host)
        if address.scheme == "http" and not here and not plain_http:
            raise CheckInError(
                f"{url}: found http, expected https: anybody on the way would read along; DeviceSettings.plain_http "
                "allows it for networks that are closed"
            )
        self._connection = Connection(timeout, transport, proxies=not here)

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

    def model(self, version: str, digest: str, limit: int = 1 << 30) -> bytes:
        """Weights of a published model, of ``limit`` bytes at most. CheckInError: their sha256 is another one."""
        path = f"/v1/models/{quote(version, safe='')}"
        content = self.download(path, limit, self._timeout + limit / self.slowest)
        found = sha256(content).hexdigest()
        if found != digest:
            raise CheckInError(f"{self.url}{path}: sha256: found {found}, expected {digest}; the download is dropped")
        return content

    def marginals(self, version: int, words: int = 1 << 20) -> Marginals:
        """A published distribution over so many words, at most: base64, and what is around it."""
        return self._message(Marginals, "GET", f"/v1/marginals/{version}", b"", limit=2 * 8 * words + 4096)

    def download(self, path: str, limit: int, seconds: float, partial: Partial | None = None) -> bytes:
        """A public file whose length is bounded before it comes, as what is not trusted must be.

        partial: keeps what has come, so that a later call goes on from there. CheckInError: more than ``limit`` bytes,
        not all there within ``seconds``, or not reached. Nothing is decoded, so that no answer grows on the device."""
        return download(self, self._connection, path, limit, seconds, self._attempts, partial)

    def wait(self, failures: int, asked: float = 0.0) -> None:
        """Before the next try: longer each time, spread out, and never shorter than was asked for, in seconds."""
        seconds, permit = asked + min(30.0, 0.5 * 2**failures) * (0.5 + random.random() / 2), current()
        if self._pause is not None:
            self._pause(seconds)
        elif permit is not None:
            permit.wait(seconds)
        else:
            time.sleep(seconds)

    def aggregation_task(self, identity: Identity, round_id: str) -> AggregationTask:
        """What a round's secure aggregation waits for from this device."""
        body = AggregationPoll(device_id=identity.device_id or "", round_id=round_id).model_dump_json().encode()
        path = f"/v1/rounds/{round_id}/aggregation"
        return self._message(AggregationTask, "POST", path, body, signer=identity, round_id=round_id, limit=_TASK_BYTES)

    def send_stage(self, identity: Identity, round_id: str, stage: Stage, body: bytes) -> StageReceipt:
        """Sends one message of secure aggregation, exact bytes."""
        path = f"/v1/rounds/{round_id}/aggregation/{stage}"
        return self._message(StageReceipt, "POST", path, body, signer=identity, round_id=round_id)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _message(
        self,
        expected: type[_Answer],
        method: str,
        path: str,
        body: bytes,
        *,
        signer: Identity | None = None,
        round_id: str | None = None,
        content_type: str = "application/json",
        limit: int = _MESSAGE_BYTES,
    ) -> _Answer:
        import httpx

        url = httpx.URL(self.url + path)
        seconds = self._timeout + (len(body) + limit) / self.slowest
        trouble, asked, spent = "", 0.0, 0.0
        for attempt in range(self._attempts):
            if attempt:
                self.wait(attempt, asked)
            headers = {"Content-Type": content_type} if body else {}
            if signer is not None:
                headers |= signed_headers(signer, method, url.path, round_id, body)
            begun = time.monotonic()
            try:
                with self._connection.exchange(method, url, headers, body, seconds) as answer:
                    content = answer.read(limit if answer.ok else PROBLEM_BYTES)
            except Broken as error:
                trouble, asked = str(error), 0.0
                spent += time.monotonic() - begun
                if spent > self._timeout:  # a server that is silent for so long is left alone
                    break
                continue
            self.bytes_up += len(body)
            self.bytes_down += len(content)
            if answer.ok:
                return self._read(expected, path, content)
            if answer.status not in RETRIED:
                raise refusal(f"{self.url}{path}", answer.status, content, answer.headers.get("date", ""))
            trouble = str(refusal("answer", answer.status, content))
            asked = _asked(answer.headers.get("retry-after", ""))
            if asked > _PATIENCE:
                raise CheckInError(
                    f"{self.url}{path}: the server asks for a pause of {asked:.0f} s ({trouble}); "
                    "everything is kept for the next check-in"
                )
        raise CheckInError(
            f"{self.url}{path}: no usable answer after {attempt + 1} tries ({trouble}); "
            "everything is kept for the next check-in"
        )

    def _read(self, expected: type[_Answer], path: str, content: bytes) -> _Answer:
        try:
            return expected.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"]) or "(message)"
            raise CheckInError(
                f"{self.url}{path}: {expected.__name__}.{field}: {first['msg']}; expected protocol version 1"
            ) from error


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _asked(retry_after: str) -> float:
    """Seconds for which a server wants to be left alone, by its Retry-After; 0 where it says nothing of the kind."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 9 else 0.0
