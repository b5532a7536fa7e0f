"""Ready is something else than alive: every reason for which a server cannot serve, brought about for real."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from server.readiness import CHECKS, Readiness
from server.service import Service
from server.settings import Limits
from tests.server.hostile.attack import head
from tests.server.hostile.process import HostileServer
from tests.server.parties import serving, settings


def lose_the_database(own: Service) -> None:
    own.database.engine.dispose()
    own.database.engine = create_engine("sqlite:////nowhere/at/all.db")


def lose_the_schema(own: Service) -> None:
    with own.database.write() as connection:
        connection.execute(text("DELETE FROM alembic_version"))


def lose_the_blobs(own: Service) -> None:
    shutil.rmtree(own.settings.blobs)
    Path(own.settings.blobs).write_text("no folder any more")


def end_the_rounds(own: Service) -> None:
    own._stopping.set()
    own.wake()
    own._ticker.join()


def test_a_server_is_ready_once_it_has_started(http: Any) -> None:
    answer = http.get("/readyz")
    assert answer.status_code == 200
    found = answer.json()
    assert set(found.pop("tick_ages")) == {"loop"}
    assert found == {"status": "ready", "checks": dict.fromkeys(CHECKS, True), "model_version": "base-1"}


@pytest.mark.parametrize(
    ("trouble", "failing"),
    [
        (lose_the_database, {"database", "schema", "model"}),
        (lose_the_schema, {"schema"}),
        (lambda own: shutil.rmtree(Path(own.settings.blobs) / "models"), {"model"}),
        (lose_the_blobs, {"model", "blobs", "disk"}),
        (lambda own: setattr(own, "settings", replace(own.settings, limits=Limits(free_bytes=1 << 62))), {"disk"}),
        (end_the_rounds, {"rounds"}),
    ],
)
def test_what_is_not_in_order_is_named(tmp_path: Path, trouble: Callable[[Service], None], failing: set[str]) -> None:
    with serving(tmp_path, tick_seconds=60.0) as http:
        own = http.app.state.service
        trouble(own)
        answer = http.get("/readyz")
        assert answer.status_code == 503
        found = {name for name, good in answer.json()["checks"].items() if not good}
        # A disk whose folder became a file still has room.
        assert failing - {"disk"} <= found <= failing and answer.json()["status"] == "unready"
        assert str(tmp_path) not in answer.text
        assert http.get("/healthz").json() == {"status": "ok"}, "it lives"
        own.settings = settings(tmp_path)


def test_asking_often_looks_once(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = http.app.state.service
    own.readiness = Readiness()
    looked: list[int] = []
    answers = own.database.answers
    monkeypatch.setattr(own.database, "answers", lambda: looked.append(1) or answers())
    assert {http.get("/readyz").status_code for _ in range(10)} == {200} and looked == [1]
    assert not list((Path(own.settings.blobs) / "probes").iterdir()), "what was tried is gone again"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_who_asks_for_the_head_only_gets_that(tmp_path: Path, path: str) -> None:
    """As load balancers and monitors do. Over a real connection, where a body would be taken for the next answer."""
    with HostileServer(tmp_path) as server, server.connect() as line:
        for _ in range(2):
            line.sendall(head(path, method="HEAD"))
            found = b""
            while b"\r\n\r\n" not in found:
                found += line.recv(4096)
            assert found.startswith(b"HTTP/1.1 200 OK\r\n"), found
            assert found.endswith(b"\r\n\r\n"), "no body follows"
