"""A server that means harm: it reads requests as a server does, and answers with whatever bytes, at whatever pace."""

import itertools
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, cast

from device_sdk.bundle import Bundle
from device_sdk.wire.messages import CheckedIn, MarginalPlan, RoundOffer

TOKEN = "a token to enrol with"
OFFER = RoundOffer(round_id="r1", model_version="any", marginals=MarginalPlan(), closes_in_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Answer = Callable[[Request, socket.socket], None]


@dataclass
class Hostile:
    """Owns a port. bundle: of the devices that ask; offer: the round that a check-in is offered. answers: what is sent
    for paths that begin so, instead of what a well-behaved server would; the first that fits."""

    bundle: Bundle
    offer: RoundOffer | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    heard: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def paths(self) -> list[str]:
        return [request.path for request in self.heard]

    def close(self) -> None:
        self._listener.close()
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with suppress(OSError), line:
            while (request := _read(line)) is not None:
                self.heard.append(request)
                answer = next((given for path, given in self.answers.items() if request.path.startswith(path)), None)
                if answer is None:
                    line.sendall(plain(self._usual(request)))
                else:
                    answer(request, line)
                    return

    def _usual(self, request: Request) -> bytes:
        if request.path == "/v1/enrol":
            return json.dumps({"version": 1, "device_id": "device-1"}).encode()
        if request.path == "/v1/check-in":
            return checked_in(self.bundle, self.offer)
        if request.path.startswith("/v1/rounds/"):
            report = request.body if request.body.startswith(b"{") else _header(request.body)
            return json.dumps({"version": 1, "report_id": json.loads(report).get("report_id", "none")}).encode()
        return b"{}"


def checked_in(bundle: Bundle, offer: RoundOffer | None = None, **changes: Any) -> bytes:
    """What a server that has nothing new would say to a check-in."""
    usual: dict[str, Any] = {
        "model_version": bundle.version,
        "model_sha256": "0" * 64,
        "marginals_version": 0,
        "marginals_sha256": "0" * 64,
        "round": offer,
        "retry_after_seconds": 1.0,
    }
    return CheckedIn(**usual | changes).model_dump_json().encode()


def newer(bundle: Bundle, path: str) -> dict[str, Answer]:
    """What a check-in is answered by where something newer lies at ``path``."""
    changed: dict[str, Any] = {"marginals_version": 7} if "marginals" in path else {"model_version": "newer"}

    def answer(request: Request, line: socket.socket) -> None:
        line.sendall(plain(checked_in(bundle, OFFER, **changed)))

    return {"/v1/check-in": answer} if path.startswith(("/v1/marginals", "/v1/models")) else {}


class Call(threading.Thread):
    """Something that is done beside the test. error: what it raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call, self.error = call, cast(BaseException | None, None)
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except BaseException as error:
            self.error = error

    def over(self, seconds: float) -> bool:
        """Whether it is over by then."""
        self.join(seconds)
        return not self.is_alive()


def plain(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer."""
    lines = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def bomb(megabytes: int, status: str = "200 OK", declared: int | None = None) -> Answer:
    """A short answer that a client which decodes it would need so many megabytes for. declared: its length, if lied."""
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(megabytes)) + packer.flush()
    length = len(packed) if declared is None else declared

    def answer(request: Request, line: socket.socket) -> None:
        line.sendall(plain(packed, status, Content_Encoding="gzip", Content_Length=str(length)))

    return answer


def drip(content: bytes, seconds: float = 0.2, head: bytes = b"") -> Answer:
    """``head`` at once, and then a byte every so many seconds, for minutes."""

    def answer(request: Request, line: socket.socket) -> None:
        line.sendall(head)
        for _, byte in zip(range(int(90 / seconds)), itertools.cycle(content), strict=False):
            line.sendall(bytes([byte]))
            time.sleep(seconds)

    return answer


def _read(line: socket.socket) -> Request | None:
    with line.makefile("rb") as stream:
        first = stream.readline().decode("latin-1")
        if not first:
            return None
        lines = iter(lambda: stream.readline().decode("latin-1").strip(), "")
        headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in lines)}
        method, path, _ = first.split(" ")
        return Request(method, path, headers, stream.read(int(headers.get("content-length", 0))))


def _header(body: bytes) -> str:
    return str(json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])["__metadata__"]["header"])
