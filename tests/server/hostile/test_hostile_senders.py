"""Senders that are slow, lie about lengths or send bombs are answered and cut off, and nobody else waits for it."""

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.architecture.sources import ROOT
from tests.server.hostile.attack import BOMB, head
from tests.server.hostile.process import CONNECTIONS, SECONDS, HostileServer, exchange, refusal_of, status_of
from tests.server.parties import DIGEST, Operator, Party

GRACE = 20.0
"""Seconds by which a busy machine may be late."""
WINDOWS, REQUESTS = 9, 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileServer]:
    with HostileServer(tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture(scope="module")
def party(server: HostileServer) -> Iterator[Party]:
    with httpx.Client(timeout=60) as http:
        yield Party(http, server.url).enrol()


def signed(party: Party, path: str, body: bytes, *lines: str, round_id: str | None = None) -> bytes:
    """The head of a request that a device signed."""
    told = [f"{name}: {value}" for name, value in party.headers("POST", path, round_id, body).items()]
    return head(path, *told, *lines)


@pytest.mark.parametrize(
    ("begin", "drop", "pause", "expected", "bounds"),
    [
        (b"POST /v1/enrol HTTP/1.1\r\n", b"X-1: 1\r\n", 0.2, (408, "too_slow"), (SECONDS - 0.1, SECONDS)),
        # drops that follow the answer keep no connection
        (head("/v1/enrol", "Content-Length: 5000"), b" ", 0.1, (408, "too_slow"), (0, 2 * SECONDS)),
        # what was refused is not waited for
        (head("/v1/enrol", "Content-Length: 500000"), b" " * 100, 0.1, (413, "too_large"), (0, SECONDS)),
    ],
    ids=["head", "body", "refused body"],
)
def test_what_comes_in_drops_is_cut_off(server, begin: bytes, drop: bytes, pause: float, expected, bounds) -> None:
    answer, seconds = exchange(server, begin, *[drop] * 5000, pause=pause)
    assert refusal_of(answer) == expected and bounds[0] <= seconds < bounds[1] + GRACE


def test_a_connection_that_says_nothing_is_cut_off(server: HostileServer) -> None:
    answer, seconds = exchange(server)
    assert answer == b"" and seconds < SECONDS + GRACE


def test_connections_without_number_do_not_shut_out_a_good_client(server: HostileServer, party: Party) -> None:
    with ExitStack() as stack:
        for _ in range(3 * CONNECTIONS):
            stack.enter_context(server.connect()).sendall(b"POST /v1/enrol HTTP/1.1\r\nX-")
        begin = signed(party, "/v1/rounds/r/marginals", b"{}", "Content-Length: 2", round_id="r")
        answer, _ = exchange(server, begin, b"{}")
        assert status_of(answer) in {404, 422}, answer  # heard, beside all of them
        assert len(list((server.proc / "fd").iterdir())) < CONNECTIONS + 100, "what it holds open"
    assert server.runs()


@pytest.mark.parametrize(
    ("lines", "body", "statuses"),
    [
        (("Content-Length: 50",), b"{}", {408}),  # more announced than sent
        (("Content-Length: 1",), b"{}", {422}),  # less; what is left is no request
        ((), b"{}", {422}),  # none: no body
        (("Content-Length: -1",), b"{}", {400}),
        (("Content-Length: two",), b"{}", {400}),
        (("Content-Length: \xb2",), b"{}", {400}),
        (("Content-Length: 2", "Content-Length: 3"), b"{}", {400}),
        (("Content-Length: 9" + "9" * 60,), b"{}", {400, 413}),
        (("Content-Length: 70000",), b"{}", {413}),
        (("Transfer-Encoding: chunked",), b"zz\r\n{}\r\n0\r\n\r\n", {400}),
        (("Transfer-Encoding: chunked",), b"ffffffffffffffffffff\r\n{}", {400, 408}),
        (("Transfer-Encoding: chunked",), b"10000\r\n" + b" " * 65536 + b"\r\n10\r\n" + b" " * 16 + b"\r\n", {413}),
        (("Transfer-Encoding: gzip",), b"{}", {400, 501}),
        (("Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"), BOMB, {413, 415}),
        (("Content-Encoding: gzip", "Content-Length: 60"), BOMB[:60], {415}),
        (("Content-Encoding: deflate", "Content-Length: 60"), zlib.compress(bytes(1 << 20))[:60], {415}),
        (("Content-Encoding: br", "Content-Length: 3"), b"\x8b\x01\x80", {415}),
        (("Content-Length: 60000",), b"[" * 60000, {422}),
        (("Content-Length: 60000",), b'{"a":' * 12000, {422}),
        (("Content-Length: 60000",), b'{"token":' + b"9" * 59991, {422}),
    ],
)  # fmt: skip
def test_lengths_and_encodings_that_lie(server: HostileServer, lines, body: bytes, statuses: set[int]) -> None:
    before = server.memory
    answer, seconds = exchange(server, head("/v1/enrol", *lines), body)
    assert status_of(answer) in statuses, answer[:300]
    assert seconds < 2 * SECONDS + GRACE
    assert server.memory - before < 16 << 20  # nothing was inflated


def test_a_signed_bomb_is_refused_and_not_inflated(server: HostileServer, party: Party) -> None:
    path, before = "/v1/rounds/r/deltas", server.memory
    begin = signed(party, path, BOMB, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}", round_id="r")
    answer, _ = exchange(server, begin, BOMB)
    assert status_of(answer) in {413, 415}, answer[:300]
    assert server.memory - before < 16 << 20


@contextmanager
def attacked(server: HostileServer, party: Party) -> Iterator[None]:
    """A server under attack by a process that shares nothing with this one."""
    line = signed(party, "/v1/rounds/r/deltas", b"", "Content-Length: 60000", round_id="r")
    command = [sys.executable, "-m", "tests.server.hostile.attack", str(server.port), line.hex()]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    try:
        time.sleep(2)
        assert process.poll() is None
        yield
    finally:
        process.kill()
        process.wait()


def p99(server: HostileServer, party: Party, requests: int) -> float:
    """Seconds that all but a hundredth of a good device's check-ins take at most."""
    taken = []
    for _ in range(requests):
        begun = time.perf_counter()
        assert party.check_in().status_code == 200
        taken.append(time.perf_counter() - begun)
    return float(np.quantile(taken, 0.99))


@pytest.mark.slow
def test_a_good_client_hardly_notices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Windows with and without attackers in turn, since the machine may be busy with something else."""
    with HostileServer(tmp_path) as server, httpx.Client(timeout=60) as http:
        party, attacker = (Party(http, server.url).enrol() for _ in range(2))
        Operator(http, server.url).open()
        p99(server, party, 100)
        calm, pressed, before = [], [], server.memory
        for _ in range(WINDOWS):
            calm.append(p99(server, party, REQUESTS))
            with attacked(server, attacker):
                pressed.append(p99(server, party, REQUESTS))
            with capsys.disabled():
                grown = server.memory - before
                print(f"\np99 without, with attackers: {calm[-1]:.4f}, {pressed[-1]:.4f} s; memory {grown:+,} bytes")
        assert np.median(pressed) <= 2 * np.median(calm) and server.memory - before < 64 << 20
        assert party.check_in(words_digest=DIGEST).status_code == 200
