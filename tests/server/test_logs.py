"""What is logged: enough to see what the server did, and nothing that anybody sent it."""

import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from device_sdk.errors import StateError
from server.logs import JsonLines, Lines, configure, fields
from server.service import Service
from tests.server.parties import ENROLMENT, HEADERS, OPERATOR, Operator, Party, initial, serving, settings

ROLLOUT = "kanarienvogel"


@contextmanager
def logged(formatter: logging.Formatter, level: int = logging.DEBUG) -> Iterator[StringIO]:
    """Everything that is logged within the block, by anybody."""
    root, stream = logging.getLogger(), StringIO()
    handler, before = logging.StreamHandler(stream), root.level
    handler.setFormatter(formatter)
    handler.addFilter(lambda record: not record.name.startswith("httpx"))  # the test's own client
    requests = logging.getLogger("idiolect.requests")
    root.addHandler(handler)
    root.setLevel(level)
    requests.setLevel(logging.INFO)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        requests.setLevel(logging.NOTSET)


def ask_everything(http: Any) -> list[int]:
    """Requests that carry the rollout wherever a request can carry something; the last ones fail inside the server."""
    device, operator = Party(http).enrol(), Operator(http)
    round_id = operator.open(deltas={})
    found = [
        *(device.send_counts(round_id, {1: 256}, report_id=f"{ROLLOUT}-{number}") for number in (1, 2)),
        device.send_counts(round_id, {1: 256}, words_digest=ROLLOUT),
        device.send_counts(ROLLOUT, {1: 256}),
        device.send_delta(round_id, model_version=ROLLOUT),
        device.post(f"/v1/rounds/{round_id}/deltas", ROLLOUT.encode(), round_id),
        device.post("/v1/check-in", ROLLOUT.encode()),
        device.check_in(model_version=ROLLOUT),
        http.post("/v1/enrol", json={"token": ROLLOUT, "public_key": ROLLOUT}),
        http.get(f"/v1/models/{ROLLOUT}?q={ROLLOUT}", headers={"User-Agent": ROLLOUT, "X-Request-ID": ROLLOUT}),
        http.get(f"/{ROLLOUT}", headers={"Authorization": f"Bearer {ROLLOUT}", "Cookie": f"{ROLLOUT}={ROLLOUT}"}),
        http.request(ROLLOUT.upper(), "/healthz"),
        http.get("/v1/operator/status", headers={"Authorization": f"Bearer {ROLLOUT}"}),
        http.post(f"/v1/operator/marginals/0/publish?note={ROLLOUT}", headers=HEADERS),
        http.post("/v1/operator/rounds", content=ROLLOUT, headers=HEADERS),
        http.post("/dashboard/sign-in", data={"token": ROLLOUT}),
        http.get(f"/dashboard/rounds/{ROLLOUT}"),
        http.get("/v1/updates/" + ROLLOUT),
    ]
    operator.close(round_id)
    for path, body in (
        ("/v1/check-in", {"device_id": device.id, "bundle_format": 1, "model_version": ROLLOUT}),
        ("/v1/rounds/r1/marginals", {"words": ROLLOUT}),
        ("/v1/rounds/r1/words", {"words": [ROLLOUT, f"{ROLLOUT} {ROLLOUT}"]}),
    ):
        found.append(device.post(path, json.dumps(body).encode(), None if path.endswith("in") else "r1"))
    return [answer.status_code for answer in found]


@pytest.mark.parametrize("formatter", [JsonLines(), Lines()], ids=["json", "text"])
def test_no_rollout_is_ever_logged(tmp_path: Path, monkeypatch, formatter: logging.Formatter) -> None:
    with logged(formatter) as stream, serving(tmp_path) as http:
        assert {200, 401, 404, 405, 409, 422} <= set(ask_everything(http))

        def fails(*_: Any, **__: Any) -> Any:
            try:
                json.loads(f"[{ROLLOUT}")
            except ValueError as error:
                raise RuntimeError(f"cannot read {ROLLOUT}") from ExceptionGroup(ROLLOUT, [error, OSError(ROLLOUT)])

        monkeypatch.setattr("server.web.routes.devices.checking.check_in", fails)
        failed = Party(http).enrol().check_in(model_version=ROLLOUT)
        assert (failed.status_code, failed.json()["code"]) == (500, "internal")
        metrics = http.get("/metrics", headers=HEADERS).text
    text = stream.getvalue()
    assert "POST /v1/check-in failed" in text and "RuntimeError" in text
    assert "test_logs.py" in text, "an error says where it came from"
    assert failed.headers["x-request-id"] in text, "and which request it was"
    assert ROLLOUT not in text.lower() + metrics.lower() and HEADERS["Authorization"].split()[1] not in text


def test_every_json_line_is_an_object_that_names_its_request(tmp_path: Path) -> None:
    with logged(JsonLines(), logging.INFO) as stream, serving(tmp_path) as http:
        device = Party(http).enrol()
        answers = [device.send_counts(Operator(http).open(), {1: 1}), http.get("/nothing"), http.get("/healthz")]
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    by_request = {line["request"]: line for line in lines if line["logger"] == "idiolect.requests"}
    own = [by_request[answer.headers["x-request-id"]] for answer in answers]
    assert [(line["method"], line["route"], line["status"]) for line in own] == [
        ("POST", "/v1/rounds/{round_id}/marginals", 200),
        ("GET", "unmatched", 404),
        ("GET", "/healthz", 200),
    ]
    assert {line.get("operator") for line in by_request.values()} == {"bootstrap", None}
    assert device.id not in stream.getvalue()


@pytest.mark.parametrize("formatter", [JsonLines(), Lines()], ids=["json", "text"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StateError("disk is full"), True),
        (ValueError("disk is full"), False),
        (ExceptionGroup("disk", [StateError("disk is full")]), True),
        (ExceptionGroup("disk is full", [ValueError("x")]), False),
    ],
)
def test_only_the_projects_own_errors_are_quoted(formatter: logging.Formatter, error: Exception, told: bool) -> None:
    logger = logging.getLogger(secrets.token_hex(4))
    with logged(formatter) as stream:
        logger.error("no", exc_info=error, extra=fields(count=3))
    assert ("disk is full" in stream.getvalue()) is told
    assert type(error).__name__ in stream.getvalue() and "count" in stream.getvalue()


def test_what_rounds_do_is_logged_with_its_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Service(settings(tmp_path), initial())

    def fails(*_: Any) -> None:
        own._stopping.set()
        own.wake()
        raise RuntimeError(ROLLOUT)

    monkeypatch.setattr("server.service.unfinished", fails)
    with logged(JsonLines()) as stream, own:
        own._ticker.join(10)
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert any("moving rounds on failed" in line["message"] and "RuntimeError" in line["error"][0] for line in found)
    assert ROLLOUT not in stream.getvalue()


@pytest.mark.parametrize("verbose", [True, False])
def test_verbose_says_step_by_step_what_the_server_did(tmp_path: Path, capsys, verbose: bool) -> None:
    configure("text", verbose=verbose)
    with serving(tmp_path) as http:
        device, operator = Party(http).enrol(), Operator(http)
        device.check_in()
        round_id = operator.open(goal=2)
        for _ in range(2):
            device.check_in()
            device.send_counts(round_id, {1: 256})
        http.get("/v1/operator/status", headers={"Authorization": f"Bearer {ROLLOUT}"})
        operator.close(round_id)
    said = capsys.readouterr().err
    steps = ("offered nothing: no round is open", f"round {round_id}: planned to open", "refused: 401 bad_token")
    places = [said.find(f"DEBUG idiolect.server {step}") for step in steps]
    assert (places == sorted(places) and -1 not in places) if verbose else set(places) == {-1}, said
    assert ("INFO idiolect.requests answered request=" in said) is verbose
    assert f"INFO idiolect.server round {round_id} published" in said
    assert not any(secret in said for secret in (device.id, ROLLOUT, OPERATOR, ENROLMENT))
