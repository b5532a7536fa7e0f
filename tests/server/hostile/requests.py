"""Requests to throw at a server: from its OpenAPI document, from its messages' schemas, and honest ones with damage."""

import http.client
import json
import random
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from device_sdk.wire.messages import DeltaPlan
from tests.device_sdk.damage import harm
from tests.server.hostile.poison import KINDS, honest, written
from tests.server.parties import DIGEST, ENROLMENT, HEADERS, SHAPES, Party

MISFITS = (
    *(("Content-Encoding", "gzip"), ("Content-Type", "multipart/form-data; boundary=x"), ("X-Long", "x" * 20000)),
    *(("Expect", "100-continue"), ("Authorization", "Bearer \xff"), ("Range", "bytes=0-,5-")),
)
"""Headers that do not fit what they come with."""


@dataclass(frozen=True)
class Thrown:
    """One request. sign: by the enrolled device, over these very bytes; round_id: the round that it signs for."""

    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    sign: bool = False
    round_id: str | None = None


class Sender:
    """Owns a connection to the server, and the device that signs."""

    def __init__(self, url: str, party: Party) -> None:
        self._where = urlsplit(url)
        self._party = party
        self._line = http.client.HTTPConnection(self._where.hostname or "", self._where.port, timeout=120)

    def send(self, thrown: Thrown) -> tuple[int, bytes]:
        """(status, body) of the answer. A connection that the server ended is opened again."""
        headers = dict(thrown.headers)
        if thrown.sign:
            headers |= self._party.headers(thrown.method, urlsplit(thrown.target).path, thrown.round_id, thrown.body)
        for _ in range(3):
            try:
                self._line.request(thrown.method, thrown.target, thrown.body or None, headers)
                answer = self._line.getresponse()
                return answer.status, answer.read()
            except (http.client.HTTPException, OSError):
                self._line.close()
        raise AssertionError(f"no answer to {thrown}")

    def close(self) -> None:
        self._line.close()


def _collect(strategy: st.SearchStrategy[Any], count: int, number: int) -> list[Any]:
    """``count`` examples of a strategy, the same at every call; none where it has none."""
    found: list[Any] = []
    how: Any = {"database": None, "deadline": None, "phases": [Phase.generate]}

    @seed(number)
    @settings(max_examples=count, suppress_health_check=list(HealthCheck), **how)
    @given(strategy)
    def collect(example: Any) -> None:
        found.append(example)

    with suppress(Unsatisfiable):  # an operation without parameters has no bad ones
        collect()
    return found


def from_openapi(document: Mapping[str, Any], count: int, round_id: str, part: int = 0) -> Iterator[Thrown]:
    """Good and bad requests to every operation of an OpenAPI document, made by schemathesis; half of them with the
    operator's token or the device's signature, so that they come further. part: other requests for each."""
    import schemathesis
    from schemathesis import GenerationMode

    operations = [found.ok() for found in schemathesis.openapi.from_dict(dict(document)).get_all_operations()]
    each = -(-count // (2 * len(operations)))
    dice = random.Random(part)
    for number, operation in enumerate(operations):
        for mode in GenerationMode:
            for case in _collect(operation.as_strategy(mode), each, 100 * part + number):
                case.path_parameters = dict(case.path_parameters or {})
                if "round_id" in case.path_parameters and dice.random() < 0.5:
                    case.path_parameters["round_id"] = round_id
                if (thrown := _thrown(case)) is None:
                    continue
                known = {**thrown.headers, **(HEADERS if dice.random() < 0.5 else {})}
                yield Thrown(thrown.method, thrown.target, thrown.body, known, dice.random() < 0.5, round_id)


def _thrown(case: Any) -> Thrown | None:
    """What schemathesis would send; None for what no HTTP client can write."""
    import requests

    try:
        names = ("method", "url", "headers", "params", "data", "json", "cookies", "files")
        arguments = case.as_transport_kwargs(base_url="http://127.0.0.1:1")
        prepared = requests.Request(**{each: arguments.get(each) for each in names}).prepare()
    except (requests.RequestException, ValueError, UnicodeError, TypeError):
        return None
    body = prepared.body or b""
    headers = {
        name: value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, value in prepared.headers.items()
        if name.lower() != "content-length"
    }
    if any("\n" in value or "\r" in value for value in headers.values()):
        return None
    content = body.encode("utf-8", "replace") if isinstance(body, str) else bytes(body)
    return Thrown(str(prepared.method), prepared.path_url, content, headers)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


def from_schemas(count: int, party: Party, round_id: str, part: int = 0) -> Iterator[Thrown]:
    """Messages with fields that are missing, more, or of any JSON type, and safetensors with any header over any bytes,
    signed: what pydantic and the safetensors reader have to cope with."""

    def message(fields: Mapping[str, Any]) -> st.SearchStrategy[bytes]:
        changed = st.dictionaries(st.sampled_from([*fields, "more", "version"]), _JSON, max_size=4)
        return changed.map(lambda changes: json.dumps({**fields, **changes}).encode())

    entry = st.fixed_dictionaries(
        {},
        optional={
            "dtype": st.sampled_from(["F32", "F16", "BF16", "I8", "F64", "BOOL", "X"]) | _JSON,
            "shape": st.lists(st.integers(-1, 9) | st.integers(), max_size=4) | _JSON,
            "data_offsets": st.lists(st.integers(-1, 300) | st.integers(), max_size=3) | _JSON,
        },
    )
    header = st.dictionaries(st.sampled_from([*SHAPES, "__metadata__", "scale/x"]) | st.text(max_size=8), entry | _JSON)
    told = json.dumps(_header_fields(party, round_id))
    named = header.map(lambda found: {"__metadata__": {"header": told}} | found)
    tensors = st.builds(written, named | header, st.binary(max_size=260))
    fields = {"report_id": "r", "device_id": party.id, "round_id": round_id, "words_digest": DIGEST, "utterances": 1}
    where = f"/v1/rounds/{round_id}"
    kinds: list[tuple[str, st.SearchStrategy[bytes], str | None]] = [
        ("/v1/check-in", message({"device_id": party.id, "bundle_format": 1, "model_version": "base-1"}), None),
        (f"{where}/marginals", message(fields | {"counts": {"1": 256}}), round_id),
        (f"{where}/words", message(fields | {"words": ["cortado"]}), round_id),
        (f"{where}/deltas", tensors, round_id),
        (f"{where}/deltas", st.binary(max_size=400), round_id),
        (f"{where}/aggregation", message({"device_id": party.id, "round_id": round_id}), round_id),
        (f"{where}/aggregation/keys", message(fields), round_id),
        ("/v1/enrol", message({"token": ENROLMENT, "public_key": party.public}), None),
    ]
    for number, (target, strategy, signed_for) in enumerate(kinds):
        for body in _collect(strategy, -(-count // len(kinds)), 100 * part + number):
            yield Thrown("POST", target, body, sign=target != "/v1/enrol", round_id=signed_for)


def _header_fields(party: Party, round_id: str) -> dict[str, Any]:
    own = {"report_id": secrets.token_hex(8), "device_id": party.id, "round_id": round_id}
    return own | {"model_version": "base-1", "utterances": 1}


def damaged(count: int, party: Party, round_id: str, part: int = 0) -> Iterator[Thrown]:
    """Honest bodies with bytes changed, cut out, repeated or put in, nested without end, and poisoned deltas; sometimes
    with headers, paths and methods that do not fit."""
    dice, rng, plan = random.Random(part), np.random.default_rng(part), DeltaPlan()
    kinds = [kind for kind in KINDS.values() if plan.encoding in kind.encodings]
    where = f"/v1/rounds/{round_id}"
    change: list[Callable[[bytearray], bytes]] = [
        *[lambda body: harm.damaged(bytes(body), rng)] * 5,
        lambda body: bytes(body).replace(b":", b":[" * dice.randrange(1, 3000), 1),
        lambda body: bytes(body).replace(b'"', b'"\\u0000\\ud800', dice.randrange(1, 4)),
        lambda body: bytes(body).replace(b"1", b"1" * dice.randrange(1, 5000), dice.randrange(1, 3)),
        lambda body: bytes(body).replace(b"1", dice.choice([b"NaN", b"-1", b"1e999", b"1.5", b"true", b"null"])),
        lambda body: b"\xef\xbb\xbf" + bytes(body),
        lambda body: bytes(body).decode("latin-1").encode("utf-16"),
    ]
    for number in range(count):
        report = honest(rng, plan, SHAPES, _header_fields(party, round_id))
        now = {"device_id": party.id, "bundle_format": 1, "model_version": "base-1"}
        choices: list[tuple[str, bytes, str | None]] = [
            ("/v1/check-in", json.dumps(now).encode(), None),
            (f"{where}/marginals", party.counts(round_id, {1: 256, 2: 128}), round_id),
            (f"{where}/words", party.words(round_id, "cortado", "o'neill"), round_id),
            (f"{where}/deltas", report.body(), round_id),
            (f"{where}/deltas", report.body(), round_id),
            ("/v1/enrol", json.dumps({"token": ENROLMENT, "public_key": party.public}).encode(), None),
            ("/v1/operator/rounds", b'{"settings": {"minimum": 1}, "open": true}', None),
            ("/v1/operator/marginals", b'{"probabilities": "AAAA", "note": "1"}', None),
        ]
        target, body, signed_for = choices[number % len(choices)]
        if target.endswith("/deltas") and dice.random() < 0.4:
            content = dice.choice(kinds).make(rng, report)
        else:
            content = bytes(dice.choice(change)(bytearray(body)))
        headers = dict(HEADERS) if "operator" in target else {}
        method = "POST"
        if dice.random() < 0.1:
            target += dice.choice((quote(dice.choice(["\0", "/..", "%", "ü", "x" * 300])), "?note=%00%ff"))
            method = dice.choice(["POST", "PUT", "GET", "DELETE", "PATCH", "BREW"])
        if dice.random() < 0.1:
            headers |= [dice.choice(MISFITS)]
        yield Thrown(method, target, content, headers, sign=dice.random() < 0.9, round_id=signed_for)
