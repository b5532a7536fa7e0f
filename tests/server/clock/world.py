"""A whole server on a clock that only moves when it is told to: the real routes and the real state in a real database.

Requests come to the functions behind the routes, signed as devices sign them; no socket and no thread is in between, so
that a sequence of operations is the same at every run of its seed."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sqlalchemy import Row, event
from starlette.requests import Request

from server.plans.round import RoundState
from server.problems import Refusal
from server.rounds.store import rounds_in, unfinished
from server.service import Service
from server.settings import ServerSettings
from server.storage.database import Database
from server.web.routes import devices as routes
from server.web.routes.devices import check_claimed
from tests.server.chaos.server_process import buckets
from tests.server.parties import ENROLMENT, Party, settings
from tests.server.releases.rounds import Killed

BUCKETS = 48
BEGIN = 1_000_000.0


@dataclass
class Clock:
    now: float = BEGIN

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Answer:
    """status: of HTTP; code: of a refusal, else empty; content: the message."""

    status: int
    code: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Sending:
    """A signed request, which can be sent again as it is."""

    path: str
    round_id: str | None
    body: bytes
    headers: dict[str, str]


@dataclass
class World:
    """Owns one server's folder and clock. ``restart`` is what follows a kill: a new process over the same files."""

    folder: Path
    database: Database
    clock: Clock = field(default_factory=Clock)
    _countdown: int | None = None
    _connections: set[Any] = field(default_factory=set)

    def __post_init__(self) -> None:
        engine = self.database.engine
        self._listeners = [(name, self._step) for name in ("before_cursor_execute", "after_cursor_execute", "commit")]
        self._listeners.append(("checkout", lambda connection, *_: self._connections.add(connection)))
        for name, listener in self._listeners:
            event.listen(engine, name, listener)
        self._open()

    def _open(self) -> None:
        # A database object keeps its compiled statements, and its schema is up to date; its connections are new.
        with mock.patch("server.service.Database", lambda *_: self.database):
            self.service = Service(server_settings(self.folder, self.clock))
        self._app = SimpleNamespace(state=SimpleNamespace(service=self.service))

    def _step(self, _connection: Any, cursor: Any = None, *_: Any) -> None:
        if self._countdown is not None:
            self._countdown -= 1
            if self._countdown < 0:
                if cursor is not None:
                    cursor.close()  # else the exception would keep it, and its locks, alive
                raise Killed

    def killed_after(self, steps: int, action: Callable[[], object]) -> None:
        """End the process at the boundary of a statement or a commit, so many of them from now, if the action gets
        there, and start another."""
        self._countdown = steps
        with suppress(Killed):
            action()
        self._countdown = None
        self.restart()

    def restart(self) -> None:
        self._end()
        self._open()

    def _end(self) -> None:
        self.service.close()
        for connection in self._connections:  # with a process end its locks
            connection.close()
        self._connections.clear()

    def close(self) -> None:
        self._end()
        for name, listener in self._listeners:
            event.remove(self.database.engine, name, listener)

    def opened(self) -> Row[Any] | None:
        """The open round."""
        with self.database.read() as connection:
            return next(iter(rounds_in(connection, RoundState.OPEN)), None)

    def unfinished(self) -> list[str]:
        """Ids of the rounds that have not ended."""
        with self.database.read() as connection:
            return [row.id for row in unfinished(connection)]

    def sign(self, device: Party, path: str, body: bytes, round_id: str | None = None) -> Sending:
        return Sending(path, round_id, body, device.headers("POST", path, round_id, body, at=self.clock.now))

    def send(self, sending: Sending) -> Answer:
        headers = [(name.lower().encode(), value.encode()) for name, value in sending.headers.items()]
        named = {} if sending.round_id is None else {"round_id": sending.round_id}
        scope = {"type": "http", "method": "POST", "path": sending.path, "headers": headers, "path_params": named}
        route = getattr(routes, f"post_{sending.path.rpartition('/')[2].replace('-', '_')}")
        request = Request(scope | {"app": self._app})
        try:
            if sending.headers:
                check_claimed(self._app.state.service, request)
            answer = route(request, *named.values(), sending.body)
        except Refusal as refusal:
            return Answer(refusal.status, refusal.code, {})
        return Answer(answer.status_code, "", json.loads(bytes(answer.body)))

    def enrol(self, device: Party) -> Party:
        """Has an answer that is never lost: enrolling again is the same."""
        body = json.dumps({"token": ENROLMENT, "public_key": device.public}).encode()
        answer = self.send(Sending("/v1/enrol", None, body, {}))
        assert answer.status == 200, answer
        device.id = answer.content["device_id"]
        return device


def server_settings(folder: Path, clock: Clock) -> ServerSettings:
    return settings(folder, clock=clock, tick_seconds=1e9)


def make_template(folder: Path) -> Path:
    """A server's folder as it is before the first device: one word and one value for each bucket."""
    Service(server_settings(folder, Clock()), buckets(BUCKETS, BUCKETS)).close()
    return folder
