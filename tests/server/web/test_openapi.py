"""The OpenAPI document: whole, and true to what the server answers."""

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from server.aggregation.weights_file import dump_weights
from server.settings import UpdateSettings
from server.signing.roots import create
from server.web.openapi import document
from server.web.routes.authorization import TABLE
from tests.architecture.sources import ROOT
from tests.server.parties import ENROLMENT, HEADERS, Operator, Party, initial, serving
from tests.server.rounds.secure_aggregation.members import PLAN, Member

DOCUMENT = document()
OPERATIONS = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}


def codes(answer: dict[str, Any]) -> set[str]:
    """Of the problems that a response may be."""
    return set(re.findall("`([a-z_]+)`", answer["description"]))


def test_it_is_a_valid_document() -> None:
    pytest.importorskip("openapi_spec_validator").validate(DOCUMENT)


def test_it_has_every_route_but_the_web_pages() -> None:
    assert {row for row in TABLE if row[1] != "/" and not row[1].startswith("/dashboard")} == OPERATIONS


def test_every_code_of_the_source_is_told() -> None:
    """What raises a Refusal with a literal code raises one that the document knows, with that status."""
    told = {
        (int(status), code)
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        for code in codes(answer)
    }
    source = "".join(path.read_text() for path in (ROOT / "server").rglob("*.py"))
    found = {(int(status), code) for status, code in re.findall(r'Refusal\(\s*([0-9]{3}),\s*"([a-z_]+)"', source)}
    assert len(found) > 40 and found - told <= {(403, "no_rule")}


def test_bytes_are_told_as_base64() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    key = schemas["KeyAdvertisement"]["properties"]["identity_key"]
    assert (key["minLength"], key["maxLength"], key["contentEncoding"]) == (44, 44, "base64")
    assert "binary" not in json.dumps(schemas)


class Watch:
    """A client that holds every answer against the document."""

    def __init__(self, http: Any) -> None:
        self.http = http
        self.seen: set[tuple[str, str, int]] = set()
        patterns = ((re.sub(r"\{[a-z_]+\}", "[^/]+", path), path) for _, path in OPERATIONS)
        self.paths = sorted(set(patterns), key=lambda pair: pair[1].count("{"))

    def request(self, method: str, url: str, **content: Any) -> Any:
        answer = self.http.request(method, url, **content)
        path = next(path for pattern, path in self.paths if re.fullmatch(pattern, url.partition("?")[0]))
        told = DOCUMENT["paths"][path][method.lower()]["responses"]
        assert str(answer.status_code) in told, (method, url, answer.status_code, answer.text)
        described = told[str(answer.status_code)]
        if "content" in described:
            media = answer.headers["content-type"].partition(";")[0]
            assert media in described["content"], (method, url, media)
            if media == "application/json":
                schema = {"components": DOCUMENT["components"], **described["content"][media]["schema"]}
                Draft202012Validator(schema).validate(answer.json())
            if not answer.is_success and media == "application/json" and answer.status_code != 503:
                assert answer.json()["code"] in codes(described), (url, answer.text)
        self.seen.add((method, path, answer.status_code))
        return answer

    def get(self, url: str, **content: Any) -> Any:
        return self.request("GET", url, **content)

    def post(self, url: str, **content: Any) -> Any:
        return self.request("POST", url, **content)


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    create(tmp_path / "keys", keys=1, threshold=1, days=10.0, root_passphrase=None, passphrase=None)
    with serving(tmp_path, updates=UpdateSettings(tmp_path / "keys" / "server")) as http:
        yield Watch(http)


def test_the_server_answers_as_the_document_says(watch: Watch) -> None:
    """A walk through every route, each with an answer that is a success, and with many that are not."""
    operator, device = Operator(watch), Party(watch).enrol()

    def ask(*paths: str, **content: Any) -> None:
        """As the operator; with content, to be posted."""
        for path in paths:
            watch.request("POST" if content else "GET", f"/v1/operator/{path}", headers=HEADERS, **content)

    for public in ("x", Party(watch).public):
        for token in ("nothing", ENROLMENT):
            watch.post("/v1/enrol", json={"token": token, "public_key": public})
    watch.post("/v1/check-in", content=b"{}")
    device.post("/v1/check-in", b"{}")
    opened = operator.open(deltas={}, words={})
    assert device.check_in().json()["round"]["round_id"] == opened
    for _ in range(2):
        device.send_counts(opened, {1: 256})
        device.send_delta(opened)
        device.send_words(opened, "cortado")
    device.send_delta("r0-none")
    for words in ("two words", "word7"):
        device.send_words(opened, words)
    device.send_counts(opened, {1: 10**6}, report_id="other")
    ask("rounds", json={})
    ask("rounds", json={"settings": {"goal": 0}})
    closed = operator.close(opened)
    ask(f"rounds/{opened}/open", content=b"")
    planned = operator.post("rounds", json={"open": False})["id"]
    for step in ("open", "abandon"):
        operator.post(f"rounds/{planned}/{step}")
    for path in ("me", "status", "privacy", "rounds", f"rounds/{opened}", "models", "marginals", "marginals/1"):
        operator.get(path)
        watch.get(f"/v1/operator/{path}")
    ask("rounds?limit=0", "rounds/none", "marginals/9", "marginals/x")

    model = closed["model_version"]
    whole = watch.get(f"/v1/models/{model}")
    for headers in ({"If-None-Match": whole.headers["etag"]}, {"Range": "bytes=5-9"}):
        watch.get(f"/v1/models/{model}", headers=headers)
    beyond = watch.get(f"/v1/models/{model}", headers={"Range": "bytes=99999999-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{len(whole.content)}")
    assert watch.get(f"/v1/models/{model}", headers={"Range": "bytes=a-b"}).status_code == 400
    for path in ("none", f"{model}/from/base-1", f"{model}/from/none"):
        watch.get(f"/v1/models/{path}")
    for path in ("marginals/1", "marginals/9", "updates/timestamp.json", "updates/nothing"):
        watch.get(f"/v1/{path}")

    ask("models/pushed?published=false", content=dump_weights(initial(seed=3).weights))
    ask("models/bad", content=b"x")
    operator.post("rollout", json={"version": "pushed"})
    ask("rollout", json={"version": "pushed"})
    operator.get("rollout")
    operator.post("rollout/roll-back")
    ask("rollout/roll-back", "models/none/publish", content=b"")
    operator.post("rollout", json={"version": "pushed"})
    for path in ("rollout/promote?force=true", "models/base-1/publish"):
        operator.post(path)
    operator.post("marginals", json={"probabilities": b64encode(np.full(40, 1 / 40, "<f8").tobytes()).decode()})
    ask("marginals", json={"probabilities": "AAAA"})
    operator.post("marginals/1/publish")

    anna = operator.post("operators", json={"name": "anna", "role": "viewer"})["token"]
    ask("operators", json={"name": "anna", "role": "viewer"})
    watch.post("/v1/operator/rounds", json={}, headers={"Authorization": f"Bearer {anna}"})
    token = operator.post("enrolment-tokens", json={"name": "one", "uses": 1})["token"]
    for path in ("operators", "enrolment-tokens"):
        operator.get(path)
    for _ in range(2):
        watch.post("/v1/enrol", json={"token": token, "public_key": Party(watch).public})
    for path in ("operators/anna/revoke", "enrolment-tokens/one/revoke"):
        operator.post(path)
    watch.post("/v1/enrol", json={"token": token, "public_key": Party(watch).public})
    operator.get("devices")
    operator.post(f"devices/{device.id}/revoke")
    ask("operators/none/revoke", "devices/none/revoke", content=b"")
    device.check_in()
    operator.get("actions")
    for path in ("/healthz", "/readyz"):
        watch.get(path)
        assert watch.request("HEAD", path).content == b""
    watch.get("/openapi.json")
    watch.get("/metrics", headers=HEADERS)
    watch.get("/metrics")

    group = operator.open(marginals=PLAN, minimum=2, groups={"size": 3})
    members = [Member(Party(watch).enrol(), group, np.arange(40, dtype=np.int64)) for _ in range(3)]
    watch.post(f"/v1/rounds/{group}/aggregation", content=b"{}")
    for member in members:
        member.join()
        member.join()
    watch.post(f"/v1/rounds/{group}/aggregation/nonsense", content=b"{}")
    for _ in range(4):
        for member in members:
            member.step()

    missing = OPERATIONS - {(method, path) for method, path, status in watch.seen if status < 300}
    assert missing <= {("GET", "/v1/models/{version}/from/{base}")}
    assert {status for _, _, status in watch.seen} >= {200, 201, 206, 304, 401, 403, 404, 409, 416, 422}
