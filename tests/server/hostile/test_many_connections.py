"""Ever more connections, bodies and readers that keep a server waiting: an honest device is answered all the same, and
what is held in memory stays bounded."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from server.settings import Limits
from tests.server import parties
from tests.server.hostile.attack import head
from tests.server.hostile.process import HostileServer, refusal_of, status_of
from tests.server.parties import DIGEST, Operator, Party, until

VALUES = 2_400_000
"""Of the model: a delta of float32 has 9.6 MB."""
IDLE, UPLOADS = 800, 200
CONNECTIONS = Limits().connections


def serve(folder: str) -> None:
    """What the server's process runs, with the limits that every server has."""
    from tests.server.chaos.server_process import buckets

    parties.serve(folder, buckets(40, VALUES))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HostileServer]:
    with HostileServer(tmp_path, f"{__name__}:serve") as running:
        yield running


@pytest.fixture
def party(server: HostileServer) -> Iterator[Party]:
    with httpx.Client(timeout=20) as http:
        yield Party(http, server.url).enrol()


def check_ins(server: HostileServer, party: Party, count: int) -> list[int]:
    """Statuses of so many check-ins, each over a connection of its own; 0 where there was no answer."""
    found = []
    for _ in range(count):
        status = 0
        with httpx.Client(timeout=10) as http, suppress(httpx.TransportError):
            party.http = http
            status = party.check_in(words_digest=DIGEST).status_code
        found.append(status)
    return found


def ended(line: socket.socket) -> bool:
    """Whether the server has closed the connection."""
    line.setblocking(False)
    try:
        return line.recv(1 << 16) == b""
    except OSError as error:
        return not isinstance(error, BlockingIOError)


def left(lines: list[socket.socket]) -> int:
    """How many connections are open."""
    return sum(not ended(line) for line in lines)


def test_bodies_that_do_not_come_shut_nobody_out(server: HostileServer, party: Party) -> None:
    with ExitStack() as stack:

        def idle() -> None:
            stack.enter_context(server.connect()).sendall(head("/v1/enrol", "Content-Length: 500") + b"{")

        for _ in range(IDLE):
            idle()
        time.sleep(0.5)
        answers = []
        for _ in range(3):
            for _ in range(6):
                idle()
            answers += check_ins(server, party, 2)
        assert answers == [200] * 6
    assert server.runs()


def test_answers_that_nobody_reads_shut_nobody_out(server: HostileServer, party: Party) -> None:
    with ExitStack() as stack:
        for _ in range(IDLE):
            line = stack.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.connect(("127.0.0.1", server.port))
            line.sendall(head("/v1/models/base-1", method="GET"))
        until(lambda: check_ins(server, party, 1) == [200], 20)  # what is sent lies before those who do not read it
        assert check_ins(server, party, 4) == [200] * 4


def signed_delta(party: Party, round_id: str, size: int) -> bytes:
    """The head of an upload that the device signed, of a body of zeros."""
    path = f"/v1/rounds/{round_id}/deltas"
    lines = [f"{name}: {value}" for name, value in party.headers("POST", path, round_id, bytes(size)).items()]
    return head(path, *lines, f"Content-Length: {size}")


async def hold(port: int, begin: bytes, body: bytes) -> tuple[asyncio.StreamWriter | None, bytes]:
    """Send all of a request, as far as it is taken. Returns its connection, and the answer if it came at once."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begin)
        await writer.drain()
        with suppress(OSError):
            writer.write(body)
            await asyncio.wait_for(writer.drain(), 20)
        with suppress(TimeoutError, OSError):
            return writer, await asyncio.wait_for(reader.read(4096), 0.5)
        return writer, b""
    except (OSError, TimeoutError):
        return None, b""


def test_bodies_of_many_connections_are_held_within_bounds_and_given_back(server: HostileServer, party: Party) -> None:
    """An enrolled device sends large deltas over two hundred connections, each but for its last byte."""
    assert check_ins(server, party, 3) == [200] * 3
    with httpx.Client(timeout=20) as http:
        round_id = Operator(http, server.url).open(marginals=None, deltas={}, weighting="uniform")
    size = 4 * VALUES
    begin, body = signed_delta(party, round_id, size), bytes(size - 1)
    before = server.memory

    async def attack() -> tuple[int, list[bytes]]:
        most, writers, answers = 0, [], []
        for _ in range(0, UPLOADS, 20):
            for writer, answer in await asyncio.gather(*(hold(server.port, begin, body) for _ in range(20))):
                writers.append(writer)
                answers.append(answer)
            most = max(most, server.memory)
        for writer in writers:
            if writer is not None:
                writer.transport.abort()
        return most, answers

    most, answers = asyncio.run(attack())
    assert most - before < 400 << 20, f"{(most - before) / (1 << 20):.0f} MiB held"
    assert {status_of(answer) for answer in answers if answer} <= {429, 503}
    assert any(b"retry-after" in answer.lower() for answer in answers)
    until(lambda: server.memory - before < 64 << 20, 10)  # else some is never given back
    assert check_ins(server, party, 2) == [200] * 2


def test_a_body_for_a_round_that_does_not_take_it_is_not_waited_for(server: HostileServer, party: Party) -> None:
    """Who sends, and what the round still takes of them, is looked at before a byte of the body is read."""
    with httpx.Client(timeout=20) as http:
        operator = Operator(http, server.url)
        closed = operator.open(marginals=None, deltas={}, weighting="uniform")
        operator.post(f"rounds/{closed}/abandon")
        counts = operator.open()
    for round_id, expected in (("nowhere", (404, "unknown_round")), (counts, (409, "not_collected")),
                               (closed, (409, "round_closed"))):  # fmt: skip
        answer = b""
        with server.connect(timeout=5) as line, suppress(TimeoutError):
            line.sendall(signed_delta(party, round_id, 4 * VALUES))
            while not answer.endswith(b"}") and (chunk := line.recv(4096)):
                answer += chunk
        assert answer, "the server waits for a body that it will refuse"
        assert refusal_of(answer) == expected


def test_one_address_has_its_share_of_the_connections_and_a_proxied_fleet_all(server: HostileServer) -> None:
    """This machine's proxy says whom a request is from."""

    def idle(stack: ExitStack, address: str) -> socket.socket:
        line = stack.enter_context(server.connect())
        line.sendall(head("/v1/enrol", f"X-Forwarded-For: {address}", "Content-Length: 500") + b"{")
        return line

    with ExitStack() as stack:
        greedy = [idle(stack, "203.0.113.9") for _ in range(CONNECTIONS // 2)]
        until(lambda: 0 < left(greedy) <= CONNECTIONS // 4, 10)
        time.sleep(1)
        fleet = [idle(stack, f"198.51.{number // 250}.{number % 250}") for number in range(CONNECTIONS // 2)]
        network = [idle(stack, f"2001:db8::{number:x}") for number in range(CONNECTIONS // 2)]
        until(lambda: 0 < left(network) <= CONNECTIONS // 4, 10)  # addresses of one /64 count as one
        assert left(fleet) == len(fleet)
