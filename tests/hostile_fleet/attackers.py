"""Hostile devices of every kind at once, in a process: ``python -m tests.hostile_fleet.attackers URL BUNDLE``.

Each comes from an address of its own (127.0.0.2 and on), as strangers do; honest devices come from 127.0.0.1. What is
done is counted, and printed as JSON when the standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import count, cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from device_sdk import Bundle
from device_sdk.errors import IdiolectError
from device_sdk.secure_aggregation.participant import Participant, advertise, agree, mask, reveal, share
from device_sdk.wire.secure_aggregation import SHARE_BYTES, AggregationTask, RevealedShares
from tests.server.parties import Party

IDLE = 800
"""Connections that send a head, one byte of a body, and nothing more."""
LARGE = 200
"""Connections that an enrolled device opens, each with 1 MiB of a body that does not end."""
DONE: Counter[str] = Counter()


class Stranger(Party):
    """A device that speaks the wire protocol by hand, from an address of its own."""

    def __init__(self, url: str, address: str, bundle: Bundle) -> None:
        super().__init__(httpx.Client(timeout=20, transport=httpx.HTTPTransport(local_address=address)), url)
        self.bundle = bundle

    def say(self, path: str, message: Mapping[str, Any], round_id: str | None = None) -> httpx.Response:
        answer: httpx.Response = self.post(path, json.dumps({"device_id": self.id, **message}).encode(), round_id)
        return answer

    def offer(self) -> dict[str, Any] | None:
        """The round that it is offered, once it is enrolled."""
        if not self.id:
            self.enrol()
        known, bundle = self.bundle.words.digest, self.bundle
        format_ = bundle.manifest.format_version
        answer = self.check_in(bundle_format=format_, model_version=bundle.version, words_digest=known)
        if answer.status_code == 401:
            self.enrol()
        found: dict[str, Any] | None = answer.json().get("round") if answer.status_code == 200 else None
        return found


class Member(threading.Thread):
    """Takes part in every group, up to the stage at which its flavour does harm."""

    def __init__(self, flavour: str, url: str, address: str, bundle: Bundle) -> None:
        super().__init__(name=flavour, daemon=True)
        self.flavour, self.stranger = flavour, Stranger(url, address, bundle)
        self.participant: Participant | None = None

    def run(self) -> None:
        while True:
            try:
                self.visit()
            except (httpx.HTTPError, IdiolectError, ValueError, AssertionError) as error:
                DONE[f"{self.flavour}: {type(error).__name__}"] += 1
                if not isinstance(error, httpx.HTTPError):
                    self.participant = None
            time.sleep(1.0)

    def visit(self) -> None:
        offer, words = self.stranger.offer(), self.stranger.bundle.words
        if self.participant is None:
            if offer is None or (offer.get("marginals") or {}).get("trust") != "distributed":
                return
            own = self.stranger.key, self.stranger.id, offer["round_id"]
            self.participant = advertise(*own, words_digest=words.digest, words=len(words), minimum=2)
        round_id = self.participant.round_id
        poll = self.stranger.say(f"/v1/rounds/{round_id}/aggregation", {"round_id": round_id}, round_id)
        if poll.status_code == 409 and poll.json()["code"] == "not_joined":
            self.send("keys", self.participant.advertised.model_dump_json().encode())
            return
        task = AggregationTask.model_validate_json(poll.content) if poll.status_code == 200 else None
        if task is None or task.stage in ("done", "dropped", "abandoned"):
            self.participant = None
        elif task.stage != "waiting":
            self.answer(task)

    def send(self, stage: str, body: bytes) -> None:
        assert self.participant is not None
        round_id = self.participant.round_id
        answer = self.stranger.post(f"/v1/rounds/{round_id}/aggregation/{stage}", body, round_id)
        if answer.status_code not in (200, 409):
            DONE[f"{self.flavour}: refused at {stage} with {answer.status_code}"] += 1
            self.participant = None

    def answer(self, task: AggregationTask) -> None:
        held = self.participant
        assert held is not None
        if task.roster is not None:
            held = share(held, task.roster)
            message: Any = held.dealt
        elif task.deliveries is not None:
            held = mask(held, task.deliveries, np.zeros(held.words, np.int64))
            message = held.masked
        elif task.survivors is not None:
            held = agree(held, self.stranger.key, task.survivors)
            message = held.agreed
        else:
            held = reveal(held, task.signatures or {})
            message = held.revealed
        self.participant = held
        body = message.model_dump_json().encode()
        if task.stage == "masked" and self.flavour == "poisoned ids":
            self.poison(body)
        if task.stage == "unmasking" and self.flavour == "false shares":
            body = _false(message).model_dump_json().encode()
            DONE["false reveals"] += 1
        if task.stage == "unmasking" and self.flavour == "silent at the end":
            DONE["reveals left out"] += 1
        else:
            self.send(str(task.stage), body)

    def poison(self, masked: bytes) -> None:
        """The names that a server might give to a masked report, as ids of reports of words."""
        assert self.participant is not None
        round_id, digest = self.participant.round_id, sha256(masked).hexdigest()
        for report_id in (digest[:32], digest, self.participant.advertised.signature.hex()[:32]):
            message = {"report_id": report_id, "round_id": round_id, "words": ["quixotry"]}
            message |= {"words_digest": self.stranger.bundle.words.digest}
            answer = self.stranger.say(f"/v1/rounds/{round_id}/words", message, round_id)
            DONE[f"poisoned ids answered {answer.status_code}"] += 1


def _false(message: RevealedShares) -> RevealedShares:
    """Every share another one, all of them elements of the field."""

    def other() -> bytes:
        return np.random.default_rng().integers(0, 65537, SHARE_BYTES // 4).astype("<u4").tobytes()

    changes = {field: {name: other() for name in getattr(message, field)} for field in ("seeds", "mask_keys")}
    return message.model_copy(update=changes)


class MadeUp(threading.Thread):
    """Keys without devices: forty at once from one token, which check in once and are never seen again."""

    def __init__(self, url: str, address: str, bundle: Bundle) -> None:
        super().__init__(daemon=True)
        self.url, self.address, self.bundle = url, address, bundle

    def run(self) -> None:
        while True:
            for _ in range(40):
                stranger = Stranger(self.url, self.address, self.bundle)
                with suppress(httpx.HTTPError, ValueError, AssertionError), stranger.http:
                    DONE["made-up keys"] += 1
                    stranger.offer()
                    DONE["made-up keys that were let in"] += 1
            time.sleep(15)


class Liar(threading.Thread):
    """A device in whose name reports are sent that were never true: replayed, altered, malformed, for other rounds."""

    def __init__(self, url: str, address: str, bundle: Bundle) -> None:
        super().__init__(daemon=True)
        self.stranger = Stranger(url, address, bundle)

    def run(self) -> None:
        for dice in map(random.Random, count()):
            with suppress(httpx.HTTPError, ValueError, AssertionError):
                offer = self.stranger.offer()
                round_id = offer["round_id"] if offer else "r0-0000000000"
                for stream, body in self.bodies(round_id, dice):
                    path = f"/v1/rounds/{round_id}/{stream}"
                    headers = self.stranger.headers("POST", path, round_id, body)
                    for _ in range(2):  # the second time with the same nonce
                        answer = self.stranger.http.post(self.stranger.url + path, content=body, headers=headers)
                        DONE[f"lies answered {answer.status_code // 100}xx"] += 1
            time.sleep(1.0)

    def bodies(self, round_id: str, dice: random.Random) -> Iterator[tuple[str, bytes]]:
        message = {
            "report_id": secrets.token_hex(8),
            "device_id": self.stranger.id,
            "round_id": round_id,
            "words_digest": self.stranger.bundle.words.digest,
            "utterances": 1,
            "counts": {str(number): 1 << 40 for number in range(1, len(self.stranger.bundle.words))},
        }
        yield "marginals", json.dumps(message).encode()
        yield "marginals", json.dumps(message | {"counts": {"1": -256}}).encode()
        yield "marginals", json.dumps(message | {"device_id": "d" * 32}).encode()
        yield "marginals", b"[" * 50_000
        yield "words", json.dumps(message | {"words": ["x" * 10_000]}).encode()
        yield "deltas", dice.randbytes(20_000)


async def _idle(host: str, port: int, addresses: Iterator[str]) -> None:
    """Keeps one of many connections open, and opens it again as soon as it is cut off."""
    head = b"POST /v1/enrol HTTP/1.1\r\nHost: here\r\nContent-Length: 200\r\n\r\n{"
    await asyncio.sleep(random.random() * 10)
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(next(addresses), 0))
            try:
                writer.write(head)
                DONE["idle connections"] += 1
                await reader.read()
            finally:
                writer.close()
        await asyncio.sleep(1)


async def _large(host: str, port: int, address: str, stranger: Stranger) -> None:
    """Holds a large body open in the name of an enrolled device, with a signature of something else."""
    await asyncio.sleep(random.random() * 10)
    while True:
        path = "/v1/rounds/r1-0000000000/deltas"
        lines = [f"{name}: {value}" for name, value in stranger.headers("POST", path, None, b"").items()]
        head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: here", "Content-Length: 2000000", *lines, "", ""])
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port, local_addr=(address, 0))
            try:
                writer.write(head.encode())
                for _ in range(16):
                    writer.write(b"\0" * 65_536)
                    await writer.drain()
                DONE["large bodies"] += 1
                await asyncio.wait_for(reader.read(), 60)
            except TimeoutError:
                pass
            finally:
                writer.close()
        await asyncio.sleep(5 + 10 * random.random())


async def _connections(host: str, port: int, stranger: Stranger) -> None:
    addresses = cycle(f"127.0.0.{number}" for number in range(2, 6))
    idle = [_idle(host, port, addresses) for _ in range(IDLE)]
    await asyncio.gather(*idle, *(_large(host, port, "127.0.0.6", stranger) for _ in range(LARGE)))


def main(url: str, bundle_path: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    bundle, where = Bundle.open(Path(bundle_path)), urlsplit(url)
    large = Stranger(url, "127.0.0.6", bundle)
    large.enrol()
    members = ("poisoned ids", "poisoned ids", "false shares", "false shares", "silent at the end")
    for number, flavour in enumerate(members):
        Member(flavour, url, f"127.0.0.{20 + number}", bundle).start()
    MadeUp(url, "127.0.0.7", bundle).start()
    Liar(url, "127.0.0.8", bundle).start()
    host, port = where.hostname or "", where.port or 80
    threading.Thread(target=lambda: asyncio.run(_connections(host, port, large)), daemon=True).start()
    sys.stdin.read()
    print(json.dumps(dict(DONE)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
