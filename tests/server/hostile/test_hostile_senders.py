"""Senders that are slow, lie about lengths or send bombs are answered and cut off, and nobody else waits for it."""

from __future__ import annotations

import gzip
import json
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.server.hostile.process import BODY_SECONDS, HEAD_SECONDS, HostileServer, exchange, status_of
from tests.server.parties import DIGEST, Operator, Party

GRACE = 20.0
"""Seconds by which a busy machine may be late."""
BOMB = gzip.compress(bytes(1 << 26), 9)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileServer]:
    with HostileServer(tmp_path_factory.mktemp("hostile")) as running:
        yield running


@pytest.fixture(scope="module")
def party(server: HostileServer) -> Iterator[Party]:
    with httpx.Client(timeout=60) as http:
        yield Party(http, server.url).enrol()


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: here", *lines, "", ""]).encode("latin-1")


def signed(party: Party, path: str, body: bytes, *lines: str, round_id: str | None = None) -> bytes:
    """The head of a request that a device signed."""
    told = [f"{name}: {value}" for name, value in party.headers("POST", path, round_id, body).items()]
    return head(path, *told, *lines)


def code_of(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["code"])


def test_a_head_that_does_not_end_is_cut_off(server: HostileServer) -> None:
    drops = [b"POST /v1/enrol HTTP/1.1\r\n", *(f"X-{number}: 1\r\n".encode() for number in range(1000))]
    answer, seconds = exchange(server, *drops, pause=0.2)
    assert (status_of(answer), code_of(answer)) == (408, "too_slow")
    assert HEAD_SECONDS - 0.1 <= seconds < HEAD_SECONDS + GRACE


def test_a_connection_that_says_nothing_is_cut_off(server: HostileServer) -> None:
    answer, seconds = exchange(server)
    assert answer == b""
    assert seconds < HEAD_SECONDS + GRACE


def test_a_body_that_comes_in_drops_is_refused(server: HostileServer) -> None:
    drops = [head("/v1/enrol", "Content-Length: 5000"), *[b" "] * 5000]
    answer, seconds = exchange(server, *drops, pause=0.1)
    assert (status_of(answer), code_of(answer)) == (408, "too_slow")
    assert seconds < BODY_SECONDS + HEAD_SECONDS + GRACE  # drops that follow the answer keep no connection


def test_a_body_that_was_refused_is_not_waited_for(server: HostileServer) -> None:
    drops = [head("/v1/enrol", "Content-Length: 500000"), *[b" " * 100] * 5000]
    answer, seconds = exchange(server, *drops, pause=0.1)
    assert (status_of(answer), code_of(answer)) == (413, "too_large")
    assert seconds < HEAD_SECONDS + GRACE


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
def test_lengths_and_encodings_that_lie(
    server: HostileServer, lines: tuple[str, ...], body: bytes, statuses: set[int]
) -> None:
    before = server.memory
    answer, seconds = exchange(server, head("/v1/enrol", *lines), body)
    assert status_of(answer) in statuses, answer[:300]
    assert seconds < BODY_SECONDS + HEAD_SECONDS + GRACE
    assert server.memory - before < 16 << 20  # nothing was inflated


def test_a_large_body_of_nobody_is_not_taken(server: HostileServer) -> None:
    """Whoever is not enrolled cannot have the server hold as much as a model."""
    answer, _ = exchange(server, head("/v1/rounds/r/deltas", "Content-Length: 60000"), b" " * 30000)
    assert (status_of(answer), code_of(answer)) == (401, "unsigned")


def test_a_signed_bomb_is_refused_and_not_inflated(server: HostileServer, party: Party) -> None:
    path, before = "/v1/rounds/r/deltas", server.memory
    answer, _ = exchange(
        server, signed(party, path, BOMB, "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}", round_id="r"), BOMB
    )
    assert status_of(answer) in {413, 415}, answer[:300]
    assert server.memory - before < 16 << 20


def attack(server: HostileServer, stop: threading.Event, party: Party) -> Iterator[threading.Thread]:
    """Senders of every kind at once: a hundred slow connections, opened again as they end, and bombs in turn."""
    deep = b"[" * 60000
    bombs = [
        (head("/v1/enrol", "Content-Encoding: gzip", f"Content-Length: {len(BOMB)}"), BOMB),
        (head("/v1/enrol", "Content-Length: 60000"), deep),
        (head("/v1/enrol", "Content-Length: 99999999"), b" " * 1000),
        (head("/v1/enrol"), b"{}"),
        (head("/v1/check-in", "Content-Length: 1"), b"{}" * 20),
    ]

    def slow(begin: bytes) -> None:
        while not stop.is_set():
            with suppress(OSError), server.connect(5) as line:
                line.sendall(begin)
                while not stop.wait(0.5):
                    line.sendall(b"x")

    def bombard() -> None:
        turn = 0
        while not stop.is_set():
            with suppress(OSError), server.connect(5) as line:
                for part in bombs[turn % len(bombs)]:
                    line.sendall(part)
                line.settimeout(0.5)
                line.recv(1000)
            turn += 1
            stop.wait(0.02)

    body = head("/v1/enrol", "Content-Length: 50000")
    mine = signed(party, "/v1/rounds/r/deltas", b"", "Content-Length: 60000", round_id="r")
    for begin in (b"POST /v1/enrol HTTP/1.1\r\nX-", body, mine, b""):
        for _ in range(25):
            yield threading.Thread(target=slow, args=(begin,), daemon=True)
    yield threading.Thread(target=bombard, daemon=True)


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
        calm, attacked, before = [], [], server.memory
        for _ in range(5):
            calm.append(p99(server, party, 300))
            stop = threading.Event()
            threads = list(attack(server, stop, attacker))
            for thread in threads:
                thread.start()
            time.sleep(1)
            attacked.append(p99(server, party, 300))
            stop.set()
            for thread in threads:
                thread.join(10)
        with capsys.disabled():
            told = ", ".join(f"{1000 * a:.1f}/{1000 * b:.1f}" for a, b in zip(calm, attacked, strict=True))
            print(f"\np99 of a good client, calm/attacked, ms: {told}; memory grew by {server.memory - before:,} bytes")
        assert np.median(attacked) <= 2 * np.median(calm)
        assert server.memory - before < 64 << 20
        assert party.check_in(words_digest=DIGEST).status_code == 200
