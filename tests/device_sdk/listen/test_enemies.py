"""Damaged frames and requests over every protocol: a named error each, nothing ends, nothing changes; and processes
killed at any moment lose no correction that was acknowledged."""

import asyncio
import json
import random
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.device_sdk.listen.clients import by_socket, samples, texts, until
from tests.device_sdk.listen.servers import Server, listening
from tests.device_sdk.listen.voices import spoken
from tests.speech import clips, packaged

PATHS = (
    *("/v1/feedback", "/v1/me", "/v1/me/consent", "/v1/me/vocabulary", "/v1/me/vocabulary/undo", "/v1/me/forget"),
    *("/v1/audio/transcriptions", "/v1/models", "/health", "/", "/../etc/passwd", "/v1/nothing", "/page.js"),
)
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 1e400, "", "x" * 5000, [], {}, {"id": 7}, {"id": "none", "text": []}, {"id": "none"}),
    *({"learning": 1}, {"phrase": "\u0000"}, {"phrase": "x" * 500}, {"phrase": "ok", "spellings": [[]]}, {"forget": 1}),
    *({"id": "none", "slots": {"a": 1}}, {"id": "none", "slots": {"a": "b"}, "lexicon": []}, [[[[]]]], "\ud83d"),
)
FIELDS: tuple[Any, ...] = (
    *({}, {"rate": 16_000, "width": 2, "channels": 1}, {"rate": "x"}, {"name": [1]}, {"rate": 16_000}),
)
EVENTS = ("describe", "transcribe", "audio-start", "audio-chunk", "audio-stop", "user-event", "ping", "unheard-of")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    packaged()
    with listening(tmp_path_factory.mktemp("enemies") / "state", "--no-learn") as found:
        yield found


def _state(server: Server) -> Any:
    """All that a person's device says of itself."""
    header = {"X-Idiolect-Person": "victim"}
    return [httpx.get(f"{server.http}{path}", headers=header, timeout=60).json() for path in ("/v1/me", PATHS[3])]


def _requests(server: Server, count: int, rng: random.Random) -> Counter[int]:
    found = Counter[int]()
    with httpx.Client(base_url=server.http, timeout=60) as http:
        for _ in range(count):
            method, path = rng.choice(("GET", "POST", "PUT", "DELETE", "PATCH")), rng.choice(PATHS)
            content: bytes = (
                json.dumps(rng.choice(JUNK)).encode() if rng.random() < 0.7 else rng.randbytes(rng.randrange(200))
            )
            headers = {
                "X-Idiolect-Person": rng.choice(("mallory", "", "a/b", "x" * 70)),
                "content-type": "application/json",
            }
            if rng.random() < 0.2:
                headers["content-type"] = "multipart/form-data; boundary=x"
                content = b"--x\r\n" + content
            if rng.random() < 0.1:
                headers["authorization"] = "Bearer " + "t" * rng.randrange(1, 99)
            answer = http.request(method, path, content=content, headers=headers)
            found[answer.status_code] += 1
            if answer.status_code >= 400 and path.startswith("/v1/"):
                told = answer.text if answer.headers.get("content-type") != "application/json" else ""
                assert not told and answer.json()["error"]["message"], (method, path, content, told)
    return found


async def _frames(server: Server, count: int, rng: random.Random) -> Counter[str]:
    found, done = Counter[str](), 0
    while done < count:
        rate = rng.choice(("16000", "16000", "8000", "0", "-1", "x", "99999999", "7"))
        url = f"{server.http.replace('http', 'ws', 1)}/v1/listen?rate={rate}&person=mallory"
        try:
            async with connect(url) as live:
                for _ in range(rng.randrange(1, 60)):
                    done += 1
                    kind = rng.randrange(3)
                    if kind == 0:
                        await live.send(rng.randbytes(2 * rng.randrange(300) + (rng.random() < 0.02)))
                    elif kind == 1:
                        await live.send(json.dumps(rng.choice((*JUNK, {"end": True}, {"feedback": rng.choice(JUNK)}))))
                    else:
                        await live.send(rng.choice(("{", "[" * 3000, "\u0000", "null", '{"end": 1}')))
                found["open"] += 1
        except (ConnectionClosed, InvalidStatus):
            done += 1
            found["closed"] += 1
    return found


def _events(server: Server, count: int, rng: random.Random) -> None:
    done = 0
    while done < count:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
            line.settimeout(0.001)
            try:
                for _ in range(rng.randrange(1, 60)):
                    done += 1
                    data = rng.choice((*FIELDS, {"name": "idiolect-feedback", "data": rng.choice(JUNK)}))
                    payload = rng.randbytes(rng.randrange(200))
                    head: Any = {"type": rng.choice(EVENTS), "data": data, "payload_length": len(payload)}
                    if rng.random() < 0.1:
                        head = rng.choice(({"type": 3}, {"payload_length": 1 << 40, "type": "x"}, [], {"data": []}))
                    text = json.dumps(head).encode()
                    line.sendall((text if rng.random() < 0.95 else text[:9]) + b"\n" + payload)
                    try:
                        line.recv(1 << 16)
                    except TimeoutError:
                        continue
            except OSError:
                continue


def _campaign(server: Server, count: int, seed: int) -> None:
    rng = random.Random(seed)
    asyncio.run(by_socket(server.http, clips()[0], "victim"))
    httpx.post(f"{server.http}{PATHS[3]}", json={"phrase": "xiomara"}, headers={"X-Idiolect-Person": "victim"})
    before = _state(server)
    answers = _requests(server, count // 3, rng)
    assert not [status for status in answers if status >= 500], answers
    assert len(answers) >= 4, answers
    asyncio.run(_frames(server, count // 3, rng))
    _events(server, count // 3, rng)
    assert server.process.poll() is None
    after = _state(server)
    assert after == before
    assert texts(asyncio.run(by_socket(server.http, clips()[1], "afterwards")))


def test_damage_is_named_and_changes_nothing(tmp_path: Path) -> None:
    packaged()
    with listening(tmp_path / "state", "--no-learn", "--requests-a-minute", "1000000") as server:
        _campaign(server, 300, 1)


@pytest.mark.slow
def test_twenty_thousand_pieces_of_damage(tmp_path: Path) -> None:
    packaged()
    with listening(tmp_path / "state", "--no-learn", "--requests-a-minute", "1000000") as server:
        _campaign(server, 20_000, 2)


def test_who_asks_too_often_is_told_so(tmp_path: Path) -> None:
    packaged()
    with listening(tmp_path / "state", "--no-learn", "--requests-a-minute", "30") as server:
        statuses = [httpx.get(f"{server.http}/v1/models", timeout=60).status_code for _ in range(40)]
        assert statuses[:25] == [200] * 25 and statuses[-1] == 429


def test_what_cannot_be_shown_again_is_not_kept(server: Server) -> None:
    header, url = {"X-Idiolect-Person": "surrogate"}, f"{server.http}{PATHS[3]}"
    for wrong in ({"kind": "\ud800"}, {"spellings": ["\ud800"]}, {"phrase": "a" * 20_000}):
        answer = httpx.post(url, content=json.dumps({"phrase": "anna"} | wrong), headers=header, timeout=60)
        assert answer.status_code == 422, answer.text
    assert httpx.get(url, headers=header, timeout=60).json() == {"phrases": []}


def test_a_client_that_stalls_or_leaves_harms_no_other(server: Server) -> None:
    async def meanwhile() -> str:
        url = f"{server.http.replace('http', 'ws', 1)}/v1/listen?person=stalls"
        async with connect(url) as stalls, connect(url) as leaves:
            await stalls.send(samples(clips()[0])[:3000])
            await leaves.send(samples(clips()[0]))
            leaves.transport.abort()
            return texts(await by_socket(server.http, clips()[1], "another"))

    assert asyncio.run(meanwhile()) == texts(asyncio.run(by_socket(server.http, clips()[1], "and another")))


def _kills(state: Path, kills: int, seed: int) -> None:
    """Corrections go in while the server learns, until it is killed; whatever was acknowledged is there afterwards."""
    rng, commands = random.Random(seed), [one for said in spoken() for one in said]
    header, acknowledged = {"X-Idiolect-Person": "ana"}, set[str]()
    for number in range(kills):
        with listening(state) as server:
            httpx.put(f"{server.http}/v1/me/consent", json={"keeping": True}, headers=header, timeout=60)
            known = {each["phrase"] for each in httpx.get(f"{server.http}{PATHS[3]}", headers=header).json()["phrases"]}
            assert acknowledged <= known, acknowledged - known
            deadline = time.monotonic() + rng.uniform(0.2, 2.0)

            async def talk(server: Server = server, deadline: float = deadline, number: int = number) -> None:
                url = f"{server.http.replace('http', 'ws', 1)}/v1/listen?person=ana"
                async with connect(url) as live:
                    while time.monotonic() < deadline:
                        said = rng.choice(commands)
                        await live.send(samples(said.load()))
                        await live.send(json.dumps({"end": True}))
                        results = [each for each in await until(live, "end") if each["type"] == "result"]
                        for each in results:
                            word = "zq" + "".join(rng.choice("aeiou") + rng.choice("bdklmnrst") for _ in range(3))
                            told = {"id": each["id"], "text": f"{each['text']} {word}"}
                            answer = httpx.post(f"{server.http}/v1/feedback", json=told, headers=header, timeout=60)
                            if answer.status_code == 200:
                                acknowledged.add(word)

            asyncio.run(talk())
            server.kill()
    assert len(acknowledged) >= kills // 2


def test_killed_three_times(tmp_path: Path) -> None:
    packaged()
    _kills(tmp_path / "state", 3, 1)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path: Path) -> None:
    packaged()
    _kills(tmp_path / "state", 50, 2)
