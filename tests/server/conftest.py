"""One server in this process, its operator and its devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from tests.server.backups.machine import Machine
from tests.server.databases import PLACES, placed
from tests.server.parties import OPERATOR, Operator, Party, serving
from tests.server.postgres import postgres_server

if TYPE_CHECKING:
    from fastapi.testclient import TestClient


@pytest.fixture
def http(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a fresh server."""
    with serving(tmp_path) as client:
        yield client


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a database of either kind."""
    with placed(request.param, tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def operator(http: TestClient) -> Operator:
    return Operator(http)


@pytest.fixture
def device(http: TestClient) -> Party:
    return Party(http).enrol()


@pytest.fixture
def devices(http: TestClient) -> Callable[[int], list[Party]]:
    return lambda count: [Party(http).enrol() for _ in range(count)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A server process of its own, which is not started yet."""
    with closing(Machine(tmp_path / "machine")) as found:
        yield found


Run = Callable[..., str]


class InProcess(httpx.BaseTransport):
    """Hands requests to starlette's test client, whichever HTTP library that one is built on."""

    def __init__(self, http: Any) -> None:
        self._http = http

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        answer = self._http.request(request.method, str(request.url), headers=headers, content=request.read())
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


@pytest.fixture
def run(http: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command whose requests go to the server in this process; returns what it printed."""
    from server.commands import shared
    from server.operators.client import OperatorClient

    monkeypatch.setattr(shared, "OperatorClient", partial(OperatorClient, transport=InProcess(http)))
    monkeypatch.setenv("IDIOLECT_SERVER", "http://testserver")
    monkeypatch.setenv("IDIOLECT_OPERATOR_TOKEN", OPERATOR)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(app: typer.Typer, *words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke
