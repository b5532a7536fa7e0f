"""``idiolect serve --processes`` on a real PostgreSQL: one address, one state, one hand on the rounds."""

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from device_sdk.bundle import Bundle
from server.storage.database import Database
from server.storage.lock import Lead, Lock
from tests.forks import is_running
from tests.server.commands.test_secrets import linux, ran, serving
from tests.server.parties import ENROLMENT, OPERATOR, Operator, Party, until
from tests.server.postgres import postgres_server

TOKENS = {"IDIOLECT_ENROLMENT_TOKEN": ENROLMENT, "IDIOLECT_OPERATOR_TOKEN": OPERATOR}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as found:
        yield found


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beside the database, as long as that is there."""
    return tmp_path_factory.mktemp("processes") / "blobs"


def program(url: str, blobs: Path, bundle: Bundle, *more: str) -> list[str]:
    return ["--bundle", str(bundle.path), "--database", url, "--blobs", str(blobs), *more]


@pytest.mark.slow
@pytest.mark.postgres
@linux
def test_two_processes_are_one_server(url: str, blobs: Path, tiny_bundle: Bundle, tmp_path: Path) -> None:
    """Reports on many connections are counted once each, rounds are published once, a killed process comes back, and
    the whole of it ends when it is told to."""
    options = ("--processes", "2", "--marginals-cap", "inf", "--log-format", "json")
    ready = tmp_path / "ready.json"
    with serving(tmp_path, *program(url, blobs, tiny_bundle, *options), **TOKENS) as (process, started):
        address, members = started["url"], started["processes"]
        assert len({*members, process.pid}) == 3

        def report(round_id: str) -> int:
            with httpx.Client(timeout=60) as http:  # a connection of its own, to whichever process takes it
                party = Party(http, address).enrol()
                body = party.counts(round_id, {1: 256}, words_digest=tiny_bundle.words.digest)
                path = f"/v1/rounds/{round_id}/marginals"
                first, again = (party.post(path, body, round_id) for _ in range(2))
                assert (first.json()["duplicate"], again.json()["duplicate"]) == (False, True)
                return int(first.status_code)

        def told(opened: str) -> bool:
            """Whichever process takes the connection, the one that leads or another, tells how rounds go."""
            answer = httpx.get(f"{address}/readyz", timeout=60)  # on a connection of its own
            assert answer.status_code == 200, answer.json()
            text = httpx.get(f"{address}/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}, timeout=60).text
            known = {"loop", opened} == set(answer.json()["tick_ages"])
            return known and f'idiolect_round_tick_age_seconds{{round="{opened}"}}' in text

        with httpx.Client(timeout=60) as http, ThreadPoolExecutor(8) as pool:
            operator = Operator(http, address)
            opened = operator.open(goal=24)
            until(lambda: all(told(opened) for _ in range(20)), 30.0)
            assert list(pool.map(report, [opened] * 24)) == [200] * 24
            until(lambda: operator.get(f"rounds/{opened}")["state"] == "published")
            found = operator.get(f"rounds/{opened}")
            assert found["reports"]["marginals"] == found["releases"]["marginals"]["reports"] == 24
            states = [move["target"] for move in found["transitions"]]
            assert states == ["open", "closing", "aggregated", "evaluated", "published"]
            text = http.get(f"{address}/metrics", headers={"Authorization": f"Bearer {OPERATOR}"}).text
            assert 'idiolect_reports_total{outcome="accepted",stream="marginals"} 24.0' in text
            assert 'idiolect_reports_total{outcome="duplicate",stream="marginals"} 24.0' in text

        os.kill(members[0], signal.SIGKILL)
        renewed = until(lambda: [m for m in [json.loads(ready.read_text())["processes"]] if members[0] not in m])[0]
        assert members[1] in renewed
        with httpx.Client(timeout=60) as http:
            operator = Operator(http, address)
            second = operator.open()
            assert report(second) == 200 and operator.close(second)["state"] == "published"
        log = [json.loads(line) for line in (tmp_path / "server.log").read_text().splitlines()]
        assert [line["code"] for line in log if line["message"].startswith("a process ended")] == [-signal.SIGKILL]

        other = ran(tmp_path, "serve", "--port", "0", *program(url, tmp_path / "more", tiny_bundle), **TOKENS)
        assert other.returncode != 0 and "another server uses it" in other.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0 and not any(map(is_running, renewed)) and not ready.exists()


@pytest.mark.slow
@pytest.mark.postgres
@linux
def test_they_end_when_the_one_that_watches_is_killed(url: str, blobs: Path, tiny_bundle, tmp_path: Path) -> None:
    with serving(tmp_path, *program(url, blobs, tiny_bundle, "--processes", "2"), **TOKENS) as (process, started):
        members = started["processes"]
        process.kill()
        until(lambda: not any(map(is_running, members)), 30.0)


@pytest.mark.postgres
def test_one_leads_until_it_ends(url: str) -> None:
    databases = [Database(url) for _ in range(3)]
    leads = [Lead(database) for database in databases]
    assert [lead.mine() for lead in leads] == [True, False, False]
    assert [lead.mine() for lead in leads] == [True, False, False], "asked again, it is still the same"
    databases[0].engine.dispose()  # its connection is in use: the lead stays
    assert leads[0].mine()
    leads[0].close()
    until(leads[1].mine, 30.0)  # the server sees a moment later that the connection is gone
    assert not leads[2].mine()
    for lead, database in zip(leads, databases, strict=True):
        lead.close()
        database.close()


@pytest.mark.postgres
def test_processes_take_turns(url: str) -> None:
    databases = [Database(url) for _ in range(3)]
    turns = [Lock(database) for database in databases]
    inside: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        with turns[number % 3]:
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(enter, range(18)))
    assert most == [1] * 18
    for database in databases:
        database.close()
