"""A public file over a line that breaks: bounded before it comes, and gone on with where it broke off.

What is gone on with is asked for by the file's strong ETag (If-Range), so that a file that was changed meanwhile begins
anew. Nothing is trusted for it: what is in the file is checked by whoever wants it, when all of it is there.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Protocol

from device_sdk.checkin.line import Answer, Broken, Line, TooSlow
from device_sdk.checkin.refusals import PROBLEM_BYTES, RETRIED, refusal
from device_sdk.errors import CheckInError

if TYPE_CHECKING:
    from device_sdk.checkin.partial import Partial

__all__ = ["download"]

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/[0-9]{1,15}")


class Asking(Protocol):
    """What is needed of a :class:`device_sdk.checkin.client.Client`."""

    url: str
    bytes_down: int

    def wait(self, failures: int) -> None: ...


def download(
    client: Asking, line: Line, path: str, limit: int, seconds: float, attempts: int, partial: Partial | None
) -> bytes:
    """See :meth:`device_sdk.checkin.client.Client.download`. attempts: in a row without a byte of the file."""
    where, started, trouble, failures = f"{client.url}{path}", time.monotonic(), "", 0
    kept = None if partial is None else partial.resume(path)
    content, etag = (bytearray(), None) if kept is None else (bytearray(kept.content), kept.etag)
    while failures < attempts:
        if failures:
            client.wait(failures)
        headers = {}
        if content and etag is not None:
            headers = {"Range": f"bytes={len(content)}-", "If-Range": etag}
        before, problem = len(content), bytearray()
        try:
            with line.exchange("GET", where, headers, b"", seconds - (time.monotonic() - started)) as answer:
                goes_on = answer.status == 206 and _goes_on(answer, len(content), etag)
                if answer.status in (206, 416) and not goes_on:  # a piece that nobody can use
                    content, etag, before = bytearray(), None, 0
                    if partial is not None:
                        partial.drop()
                    failures, trouble = failures + 1, "found another range than the one asked for"
                    continue
                if answer.ok and not goes_on:
                    content, etag, before = bytearray(), _strong(answer), 0
                    if partial is not None:
                        partial.begin(path, etag) if etag is not None else partial.drop()
                most = limit if answer.ok else PROBLEM_BYTES
                target = content if answer.ok else problem
                for chunk in answer.pieces():
                    target += chunk
                    client.bytes_down += len(chunk)
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
    raise CheckInError(f"{where}: no usable answer after {attempts} tries ({trouble})")


def _goes_on(answer: Answer, start: int, etag: str | None) -> bool:
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", ""))
    return found is not None and int(found[1]) == start and etag is not None and _strong(answer) == etag


def _strong(answer: Answer) -> str | None:
    etag = answer.headers.get("etag", "")
    return etag if re.fullmatch(r'"[\x21\x23-\x7e]{1,200}"', etag) else None
