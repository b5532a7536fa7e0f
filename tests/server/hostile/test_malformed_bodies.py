"""Whatever is thrown at the server, it answers, never with a 5xx, and holds no more memory than before."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest

from device_sdk.wire.messages import Problem
from tests.server.hostile.process import HostileServer
from tests.server.hostile.requests import Sender, Thrown, damaged, from_openapi, from_schemas
from tests.server.parties import Operator, Party

GROWTH = 64 << 20
"""Bytes that a hundred thousand requests may take of the server's memory."""
PARTS = 4


def throw(server: HostileServer, sender: Sender, requests: Iterable[Thrown]) -> Counter[int]:
    """Sends them all. Returns how often each status was the answer."""
    statuses: Counter[int] = Counter()
    for thrown in requests:
        status, body = sender.send(thrown)
        statuses[status] += 1
        assert status < 500 or thrown.target == "/readyz", (thrown, body, server.log.read_text()[-4000:])
        if status >= 400 and thrown.method != "HEAD" and not body.startswith((b"Invalid HTTP", b"<!")):
            assert Problem.model_validate_json(body).code, thrown
    return statuses


def bombard(folder: Path, count: int, part: int = 0) -> tuple[Counter[int], int]:
    """(statuses of at least so many requests, bytes that the server's memory grew by): a fifth from the OpenAPI
    document, two fifths each from the messages' schemas and by damage. Memory is counted once a few have come."""
    with HostileServer(folder) as server, httpx.Client(timeout=60) as http:
        party = Party(http, server.url).enrol()
        round_id = Operator(http, server.url).open(deltas={}, words={}, seconds=366 * 86400.0)
        document = json.loads(http.get(f"{server.url}/openapi.json").content)
        sender = Sender(server.url, party)
        statuses = throw(server, sender, damaged(count // 50, party, round_id, part + 50))
        before = server.memory
        for requests in (
            damaged(2 * count // 5, party, round_id, part),
            from_schemas(2 * count // 5, party, round_id, part),
            from_openapi(document, count // 5, round_id, part),
        ):
            statuses += throw(server, sender, requests)
        grown = server.memory - before
        sender.close()
        assert server.runs() and party.check_in().status_code == 200
    return statuses, grown


def test_malformed_bodies(tmp_path: Path) -> None:
    statuses, grown = bombard(tmp_path, count := 200)
    assert {401, 404, 422} <= statuses.keys()
    assert sum(statuses[status] for status in statuses if status >= 400) > count / 2 and grown < GROWTH


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_thousand_malformed_bodies(tmp_path: Path, capsys: pytest.CaptureFixture[str], part: int) -> None:
    """In parts, each against a process of its own, none of which may take more than its part of the memory."""
    statuses, grown = bombard(tmp_path, 105_000 // PARTS, part)
    with capsys.disabled():
        print(f"\n{statuses.total():,} requests, {dict(sorted(statuses.items()))}; memory grew by {grown:,} bytes")
    assert statuses.total() >= 100_000 // PARTS and grown < GROWTH // PARTS
