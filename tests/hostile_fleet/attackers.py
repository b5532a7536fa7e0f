"""Hostile devices of every kind at once, in a process: ``python -m tests.hostile_fleet.attackers URL BUNDLE``.

Each comes from an address of its own (127.0.0.2 and on), as strangers do; honest devices come from 127.0.0.1. What is
done is counted, and printed as JSON when the standard input ends."""

import asyncio
import json
import random
import resource
import secrets
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from device_sdk import Bundle, IdiolectError
from device_sdk.secure_aggregation.shares import PRIME, to_bytes
from device_sdk.wire.secure_aggregation import NO_SHARE, SEED_BYTES, AggregationTask, RevealedShares
from tests.server.parties import Party
from tests.server.rounds.secure_aggregation.members import Member

IDLE = 800
"""Connections that send a head, one byte of a body, and nothing more."""
LARGE = 200
"""Connections that an enrolled device opens, each with 1 MiB of a body that does not end."""
FLAVOURS = ("poisoned ids", "poisoned ids", "false shares", "false shares", "silent at the end")
FAILURES = (httpx.HTTPError, ValueError, AssertionError)
DONE: Counter[str] = Counter()


class Stranger(Party):
    """A device that speaks the wire protocol by hand, from an address of its own."""

    def __init__(self, url: str, address: str, bundle: Bundle) -> None:
        super().__init__(httpx.Client(timeout=20, transport=httpx.HTTPTransport(local_address=address)), url)
        self.bundle, self.known = bundle, {"words_digest": bundle.words.digest}

    def offer(self) -> dict[str, Any] | None:
        """The round that it is offered, once it is enrolled."""
        if not self.id:
            self.enrol()
        form, version = self.bundle.manifest.format_version, self.bundle.version
        answer = self.check_in(bundle_format=form, model_version=version, **self.known)
        if answer.status_code == 401:
            self.enrol()
        return answer.json().get("round") if answer.status_code == 200 else None


def take_part(flavour: str, stranger: Stranger) -> None:
    """In every group, up to the stage at which its flavour does harm."""
    held: Member | None = None
    while True:
        try:
            held = _go_on(flavour, stranger, held)
        except (*FAILURES, IdiolectError) as error:
            DONE[f"{flavour}: {type(error).__name__}"] += 1
            held = held if isinstance(error, httpx.HTTPError) else None
        time.sleep(1.0)


def _go_on(flavour: str, stranger: Stranger, held: Member | None) -> Member | None:
    offer = stranger.offer()
    if held is None:
        if offer is None or (offer.get("marginals") or {}).get("trust") != "distributed":
            return None
        nothing = np.zeros(len(stranger.bundle.words), np.int64)
        held = Member(stranger, offer["round_id"], nothing, digest=stranger.bundle.words.digest)
    poll = held.post("", b"")
    if poll.status_code == 409 and poll.json()["code"] == "not_joined":
        return held if held.join().status_code in (200, 409) else None
    task = AggregationTask.model_validate_json(poll.content) if poll.status_code == 200 else None
    if task is None or task.stage in ("done", "dropped", "abandoned"):
        return None
    if (message := held.answer(task)) is None:
        return held
    if task.stage == "masked" and flavour == "poisoned ids":  # as a server might name a masked report
        digest = sha256(message.body).hexdigest()
        for name in (digest[:32], digest, held.participant.advertised.signature.hex()[:32]):
            answer = stranger.send_words(held.round_id, "quixotry", report_id=name, **stranger.known)
            DONE[f"poisoned ids answered {answer.status_code}"] += 1
    if isinstance(message, RevealedShares) and flavour == "false shares":
        # Every share another one, all of them elements of the field.
        draw = partial(np.random.default_rng().integers, 0, PRIME, SEED_BYTES // 2)
        false = tuple(share if share == NO_SHARE else to_bytes(draw()) for share in message.shares)
        message = message.model_copy(update={"shares": false})
        DONE["false reveals"] += 1
    if isinstance(message, RevealedShares) and flavour == "silent at the end":
        DONE["reveals left out"] += 1
        return held
    status = held.post(task.stage, message).status_code
    if status not in (200, 409):
        DONE[f"{flavour}: refused at {task.stage} with {status}"] += 1
        return None
    return held


def make_up(url: str, address: str, bundle: Bundle) -> None:
    """Keys without devices: forty at once from one token, which check in once and are never seen again."""
    while True:
        for _ in range(40):
            stranger = Stranger(url, address, bundle)
            with suppress(*FAILURES), stranger.http:
                DONE["made-up keys"] += 1
                stranger.offer()
                DONE["made-up keys that were let in"] += 1
        time.sleep(15)


def lie(stranger: Stranger) -> None:
    """Reports in a device's name that were never true: replayed, altered, malformed, for other rounds."""
    while True:
        with suppress(*FAILURES):
            offer = stranger.offer()
            round_id = offer["round_id"] if offer else "r0-0000000000"
            for stream, body in _lies(stranger, round_id):
                path = f"/v1/rounds/{round_id}/{stream}"
                headers = stranger.headers("POST", path, round_id, body)
                for _ in range(2):  # the second time with the same nonce
                    answer = stranger.http.post(stranger.url + path, content=body, headers=headers)
                    DONE[f"lies answered {answer.status_code // 100}xx"] += 1
        time.sleep(1.0)


def _lies(stranger: Stranger, round_id: str) -> Iterator[tuple[str, bytes]]:
    every = dict.fromkeys(range(1, len(stranger.bundle.words)), 1 << 40)
    yield "marginals", stranger.counts(round_id, every, **stranger.known)
    yield "marginals", stranger.counts(round_id, {1: -256}, **stranger.known)
    yield "marginals", stranger.counts(round_id, every, device_id="d" * 32, **stranger.known)
    yield "marginals", b"[" * 50_000
    yield "words", stranger.words(round_id, "x" * 10_000, **stranger.known)
    yield "deltas", secrets.token_bytes(20_000)


async def hold(where: tuple[str, int], address: str, what: str, head: Callable[[], str], pieces: int) -> None:
    """Keeps one of many connections open, and opens it again as soon as it is cut off. pieces: of 64 KiB, sent after
    the head."""
    await asyncio.sleep(random.random() * 10)
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*where, local_addr=(address, 0))
            try:
                writer.write(head().encode())
                for _ in range(pieces):
                    writer.write(b"\0" * 65_536)
                    await writer.drain()
                DONE[what] += 1
                await asyncio.wait_for(reader.read(), 60 if pieces else None)
            except TimeoutError:
                pass
            finally:
                writer.close()
        await asyncio.sleep(5 + 10 * random.random() if pieces else 1)


async def hold_all(where: tuple[str, int], stranger: Stranger) -> None:
    """Idle connections, and large bodies in the name of an enrolled device, with a signature of something else."""
    path = "/v1/rounds/r1-0000000000/deltas"

    def large() -> str:
        signed = [f"{name}: {value}" for name, value in stranger.headers("POST", path, None, b"").items()]
        return "\r\n".join([f"POST {path} HTTP/1.1", "Host: here", "Content-Length: 2000000", *signed, "", ""])

    def idle() -> str:
        return "POST /v1/enrol HTTP/1.1\r\nHost: here\r\nContent-Length: 200\r\n\r\n{"

    addresses = cycle(f"127.0.0.{number}" for number in range(2, 6))
    held = [hold(where, next(addresses), "idle connections", idle, 0) for _ in range(IDLE)]
    held += [hold(where, "127.0.0.6", "large bodies", large, 16) for _ in range(LARGE)]
    await asyncio.gather(*held)


def main(url: str, bundle_path: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    bundle, parts = Bundle.open(Path(bundle_path)), urlsplit(url)
    large = Stranger(url, "127.0.0.6", bundle)
    large.enrol()
    work: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        *((take_part, (each, Stranger(url, f"127.0.0.{n}", bundle))) for n, each in enumerate(FLAVOURS, 20)),
        (make_up, (url, "127.0.0.7", bundle)),
        (lie, (Stranger(url, "127.0.0.8", bundle),)),
        (asyncio.run, (hold_all((parts.hostname or "", parts.port or 80), large),)),
    ]
    for target, given in work:
        threading.Thread(target=target, args=given, daemon=True).start()
    sys.stdin.read()
    print(json.dumps(dict(DONE)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
