"""One server over HTTP: signed requests, retries with backoff, clear errors, bytes counted."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self, TypeVar

from pydantic import ValidationError

from device_sdk.checkin.connection import PROBLEM_BYTES, RETRIED, Answer, Broken, Connection, TooSlow, refusal
from device_sdk.checkin.identity import Identity, signed_headers
from device_sdk.checks import is_this_machine
from device_sdk.errors import CheckInError
from device_sdk.permit import current
from device_sdk.state.outbox import Outgoing
from device_sdk.wire.messages import CheckedIn, CheckIn, Enrol, Enrolled, Marginals, Message, Receipt
from device_sdk.wire.secure_aggregation import AggregationTask, StageMessage, StageReceipt

if TYPE_CHECKING:
    import httpx

    from device_sdk.state import Store

_Answer = TypeVar("_Answer", bound=Message)
_MESSAGE_BYTES, _TASK_BYTES = 1 << 16, 8 << 20
"""Of an answer, at most; of a task of secure aggregation, which holds something of every device of a group."""
_KEPT = "everything is kept for the next check-in"
_PATIENCE = 60.0
"""Seconds: a server that asks for a longer pause is left alone until the next check-in."""
PART = 1 << 18
"""Bytes of a download that are written at once, and lost at most."""
_TABLE = "downloads"
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/[0-9]{1,15}")


class Client:
    """Owns the connections to one server. Every request may be sent again: what it carries is the same to the last
    byte, so the server counts it once. CheckInError: the server could not be reached within ``attempts`` tries, or its
    answer is no message of the protocol, longer than one, or too long in coming. Refused: it answered with an error."""

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
        tried again. pause: sleeps between tries; None, until the check-in is ended at most. plain_http: to other
        machines too, without TLS."""
        import httpx

        self.url = url.rstrip("/")
        self.bytes_up = self.bytes_down = 0
        self._attempts, self._pause, self._timeout = max(1, attempts), pause, timeout
        try:
            address = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise CheckInError(f"{url}: not a usable server address: {error}") from error
        if address.scheme not in ("http", "https") or not address.host:
            raise CheckInError(f"{url}: found scheme {address.scheme!r}, expected https, or http, and a host")
        here = is_this_machine(address.host)
        if address.scheme == "http" and not here and not plain_http:
            why = (
                "anybody on the way would read along; DeviceSettings.plain_http allows it for networks that are closed"
            )
            raise CheckInError(f"{url}: found http, expected https: {why}")
        self._connection = Connection(timeout, transport, proxies=not here)

    def enrol(self, token: str, identity: Identity) -> str:
        """The id that the server gives this device; the same key again gets the same id."""
        return self._message(Enrolled, "/v1/enrol", Enrol(token=token, public_key=identity.public_key)).device_id

    def check_in(self, identity: Identity, message: CheckIn) -> CheckedIn:
        """Says what the device has; the answer says what is current, and which round is open."""
        return self._message(CheckedIn, "/v1/check-in", message, identity)

    def report(self, identity: Identity, outgoing: Outgoing) -> Receipt:
        """Sends a report's exact bytes. A receipt for another report is an error: the report stays in the outbox."""
        path = f"/v1/rounds/{outgoing.round_id}/{outgoing.kind}"
        receipt = self._message(Receipt, path, outgoing.body, identity, outgoing.round_id)
        found, expected = receipt.report_id, outgoing.report_id
        if found != expected:
            raise CheckInError(f"{self.url}{path}: receipt: found report {found!r}, expected {expected!r}")
        return receipt

    def marginals(self, version: int, words: int = 1 << 20) -> Marginals:
        """A published distribution over so many words, at most: base64, and what is around it."""
        return self._message(Marginals, f"/v1/marginals/{version}", None, limit=2 * 8 * words + 4096)

    def aggregation_task(self, identity: Identity, round_id: str) -> AggregationTask:
        """What a round's secure aggregation waits for from this device."""
        path = f"/v1/rounds/{round_id}/aggregation"
        return self._message(AggregationTask, path, b"", identity, round_id, limit=_TASK_BYTES)

    def send_stage(self, identity: Identity, message: StageMessage) -> StageReceipt:
        """Sends one message of secure aggregation."""
        path = f"/v1/rounds/{message.round_id}/aggregation/{message.stage}"
        return self._message(StageReceipt, path, message.body, identity, message.round_id)

    def wait(self, failures: int, asked: float = 0.0) -> None:
        """Before the next try: longer each time, spread out, and never shorter than was asked for, in seconds."""
        seconds, permit = asked + min(30.0, 0.5 * 2**failures) * (0.5 + random.random() / 2), current()
        if self._pause is not None:
            self._pause(seconds)
        elif permit is not None:
            permit.wait(seconds)
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """Ends the connections."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def download(self, path: str, limit: int, seconds: float, partial: Partial | None = None) -> bytes:
        """A public file whose length is bounded before it comes, as what is not trusted must be, over a connection that
        may break: it is tried again until ``attempts`` in a row have brought no byte. partial: keeps what has come, so
        that a later call goes on from there; nothing is trusted for it: the file is checked by whoever wants it. What
        is gone on with is asked for by its strong ETag (If-Range), so that a file that was changed meanwhile begins
        anew. CheckInError: more than ``limit`` bytes, not all there within ``seconds``, or not reached. Nothing is
        decoded, so that no answer grows on the device."""
        where, started, trouble, failures = f"{self.url}{path}", time.monotonic(), "", 0
        content, etag = (bytearray(), None) if partial is None else partial.resume(path)
        while failures < self._attempts:
            if failures:
                self.wait(failures)
            headers = {}
            if content and etag is not None:
                headers = {"Range": f"bytes={len(content)}-", "If-Range": etag}
            before, problem, left = len(content), bytearray(), seconds - (time.monotonic() - started)
            try:
                with self._connection.exchange("GET", where, headers, b"", left) as answer:
                    goes_on = answer.status == 206 and _goes_on(answer, len(content), etag)
                    unusable = answer.status in (206, 416) and not goes_on
                    if unusable or (answer.ok and not goes_on):  # from the start
                        content, etag, before = bytearray(), None if unusable else _strong(answer), 0
                        if partial is not None:
                            partial.begin(path, etag)
                    if unusable:
                        failures, trouble = failures + 1, "found another range than the one asked for"
                        continue
                    most, target = (limit, content) if answer.ok else (PROBLEM_BYTES, problem)
                    for chunk in answer.pieces():
                        target += chunk
                        self.bytes_down += len(chunk)
                        if len(target) > most:
                            if partial is not None:
                                partial.drop()
                            raise CheckInError(f"{where}: found more than {most} bytes; the download is dropped")
                        if partial is not None and etag is not None and answer.ok:
                            partial.append(chunk)
            except TooSlow:
                what = "dropped" if partial is None else "gone on with later"
                raise CheckInError(f"{where}: not there after {seconds:.3g} s; the download is {what}") from None
            except Broken as error:
                failures = 1 if len(content) > before else failures + 1
                trouble = str(error)
                continue
            if answer.ok:
                return bytes(content)
            if answer.status not in RETRIED:
                raise refusal(where, answer.status, bytes(problem))
            failures, trouble = failures + 1, str(refusal("answer", answer.status, bytes(problem)))
        raise CheckInError(f"{where}: no usable answer after {self._attempts} tries ({trouble})")

    def _message(
        self,
        expected: type[_Answer],
        path: str,
        sent: Message | bytes | None,
        signer: Identity | None = None,
        round_id: str | None = None,
        limit: int = _MESSAGE_BYTES,
    ) -> _Answer:
        """sent: of a POST; None is a GET. limit: bytes of the answer."""
        import httpx

        url, method = httpx.URL(self.url + path), "GET" if sent is None else "POST"
        body = sent.model_dump_json().encode() if isinstance(sent, Message) else sent or b""
        plain = path.endswith("/deltas") or "/aggregation/" in path
        kind = "application/octet-stream" if plain else "application/json"
        seconds = self._timeout + (len(body) + limit) / self.slowest
        trouble, asked, spent = "", 0.0, 0.0
        for attempt in range(self._attempts):
            if attempt:
                self.wait(attempt, asked)
            headers = {"Content-Type": kind} if body else {}
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
                raise CheckInError(f"{url}: the server asks for a pause of {asked:.0f} s ({trouble}); {_KEPT}")
        raise CheckInError(f"{url}: no usable answer after {attempt + 1} tries ({trouble}); {_KEPT}")

    def _read(self, expected: type[_Answer], path: str, content: bytes) -> _Answer:
        try:
            return expected.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join([expected.__name__, *(map(str, first["loc"] or ("(message)",)))])
            raise CheckInError(f"{self.url}{path}: {field}: {first['msg']}; expected protocol version 1") from error


def _asked(retry_after: str) -> float:
    """Seconds for which a server wants to be left alone, by its Retry-After; 0 where it says nothing of the kind."""
    return float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 9 else 0.0


def _goes_on(answer: Answer, start: int, etag: str | None) -> bool:
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    return match is not None and int(match[1]) == start and etag is not None and _strong(answer) == etag


def _strong(answer: Answer) -> str | None:
    etag = answer.headers.get("etag", "")
    return etag if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', etag) else None


class Partial:
    """Owns table ``downloads`` of a store: the half of one download that is here, kept through crashes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._parts = 0
        self._waiting = bytearray()

    @property
    def path(self) -> str | None:
        """Of what is half here."""
        return None if (head := self._head()) is None else head[0]

    def resume(self, path: str) -> tuple[bytearray, str | None]:
        """The half of this file and its strong ETag; of any other one it is dropped."""
        head = self._head()
        if head is None or head[0] != path:
            self.drop()
            return bytearray(), None
        names = [name for name in self._store.names(_TABLE) if name != "head"]
        self._parts, self._waiting = len(names), bytearray()
        return bytearray(b"".join(self._store.get(_TABLE, name) or b"" for name in names)), head[1]

    def begin(self, path: str, etag: str | None) -> None:
        """What comes is the file from its start; without an ETag nothing of it is kept."""
        with self._store.transaction():
            self.drop()
            if etag is not None:
                self._store.put(_TABLE, "head", json.dumps({"path": path, "etag": etag}).encode())

    def append(self, chunk: bytes) -> None:
        self._waiting += chunk
        if len(self._waiting) >= PART:
            self._store.put(_TABLE, f"{self._parts:06d}", bytes(self._waiting))
            self._parts += 1
            self._waiting.clear()

    def drop(self) -> None:
        """It is all there, or of no use."""
        self._parts, self._waiting = 0, bytearray()
        names = self._store.names(_TABLE)
        if names:
            with self._store.transaction():
                for name in names:
                    self._store.delete(_TABLE, name)

    def _head(self) -> tuple[str, str] | None:
        content = self._store.get(_TABLE, "head")
        try:
            head = {} if content is None else json.loads(content)
            return str(head["path"]), str(head["etag"])
        except (ValueError, KeyError, TypeError):
            return None
