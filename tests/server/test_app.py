"""What the server says to good and to bad requests."""

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.wire.messages import CheckedIn, Marginals, Receipt
from device_sdk.wire.signing import BODY_DIGEST, DEVICE, NONCE, SIGNATURE, TIMESTAMP
from server.aggregation.weights_file import dump_weights, parse_weights
from tests.server.parties import DIGEST, ENROLMENT, HEADERS, WORDS, Operator, Party, initial, refusal, serving


def test_health_and_metrics(http: Any, operator: Operator, device: Party) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    device.send_counts(operator.open(), {1: 1})
    text = http.get("/metrics", headers=HEADERS).text
    assert 'idiolect_reports_total{outcome="accepted",stream="marginals"} 1.0' in text
    assert "idiolect_devices 1.0" in text and 'idiolect_rounds{state="open"} 1.0' in text and device.id not in text
    http.request("BREW", "/healthz")
    assert 'idiolect_requests_total{method="other"' in http.get("/metrics", headers=HEADERS).text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"token": "wrong", "public_key": "x"}, (401, "bad_token")),
        ({"token": "wröng\u0000", "public_key": "x"}, (401, "bad_token")),
        ({"token": ENROLMENT, "public_key": "!!"}, (422, "bad_key")),
        ({"token": ENROLMENT, "public_key": "schlüssel"}, (422, "bad_key")),
        ({"token": ENROLMENT, "public_key": b64encode(b"x" * 31).decode()}, (422, "bad_key")),
        ({"token": ENROLMENT}, (422, "bad_message")),
        ({"token": ["secret"], "public_key": "x"}, (422, "bad_message")),
        ({"token": "secret" * 100, "public_key": "x"}, (401, "bad_token")),
        ({"token": ENROLMENT, "public_key": "x", "more": 1}, (422, "bad_message")),
        ({"token": ENROLMENT, "public_key": "x", "version": 2}, (422, "bad_message")),
    ],
)
def test_bad_enrolments(http: Any, body: dict[str, Any], expected: tuple[int, str]) -> None:
    answer = http.post("/v1/enrol", json=body)
    assert refusal(answer) == expected
    assert "secret" not in answer.text, "what is wrong is named, and no token repeated"


def test_check_in_says_what_is_current(operator: Operator, device: Party) -> None:
    idle = CheckedIn.model_validate_json(device.check_in().content)
    assert (idle.model_version, idle.marginals_version, idle.round) == ("base-1", 0, None)
    round_id = operator.open(deltas={"clip_norm": 2.0})
    other = CheckedIn.model_validate_json(device.check_in(words_digest="e" * 64).content).round
    assert other is not None and other.marginals is None, "another word list is not asked for marginals"
    offer = CheckedIn.model_validate_json(device.check_in().content).round
    assert offer is not None and (offer.round_id, offer.model_version) == (round_id, "base-1")
    assert offer.marginals is not None and offer.deltas is not None and offer.deltas.clip_norm == 2.0
    assert 0 < offer.closes_in_seconds <= 86400
    device.send_counts(round_id, {1: 1})
    after = CheckedIn.model_validate_json(device.check_in().content).round
    assert after is not None and after.marginals is None
    device.send_delta(round_id)
    assert CheckedIn.model_validate_json(device.check_in().content).round is None


def test_the_whole_way(http: Any, operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    round_id = operator.open(deltas={}, smoothing=1.0)
    for number, device in enumerate(devices(3)):
        assert device.send_counts(round_id, {number + 1: 256, 9: 128}).status_code == 200
        assert device.send_delta(round_id, value=0.01 * (number + 1), utterances=number + 1).status_code == 200
    found = operator.close(round_id)
    states = ["open", "closing", "aggregated", "evaluated", "published"]
    assert [move["target"] for move in found["transitions"]] == states and found["state"] == states[-1]
    base = initial()
    served = http.get(f"/v1/models/{found['model_version']}")
    weights = parse_weights(served.content)
    assert served.headers["etag"] == f'"{sha256(served.content).hexdigest()}"'
    # Weighted by utterances: (1 * 0.01 + 2 * 0.02 + 3 * 0.03) / 6.
    assert np.allclose(weights["encoder.0.W"] - base.weights["encoder.0.W"], 0.14 / 6, atol=1e-6)
    assert np.array_equal(weights["features.scale"], base.weights["features.scale"])
    answer = http.get(f"/v1/marginals/{found['marginals_version']}")
    message = Marginals.model_validate_json(answer.content)
    probabilities = np.frombuffer(b64decode(message.probabilities), "<f8")
    counts = np.zeros(WORDS)
    counts[[1, 2, 3]], counts[9] = 1.0, 1.5
    assert message.words_digest == DIGEST
    assert np.allclose(probabilities, (counts + base.background) / (counts.sum() + 1))
    for each in (served, answer):
        assert http.get(str(each.url), headers={"If-None-Match": each.headers["etag"]}).status_code == 304
    part = http.get(f"/v1/models/{found['model_version']}", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, served.content[10:20])


def test_duplicates_are_answered_and_counted_once(operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={})
    for stream, body in (("marginals", device.counts(round_id, {3: 100})), ("deltas", device.delta(round_id))):
        path = f"/v1/rounds/{round_id}/{stream}"
        receipts = [Receipt.model_validate_json(device.post(path, body, round_id).content) for _ in range(3)]
        assert [receipt.duplicate for receipt in receipts] == [False, True, True]
    assert operator.close(round_id)["reports"] == {"marginals": 1, "deltas": 1, "words": 0}
    assert Receipt.model_validate_json(device.post(f"/v1/rounds/{round_id}/deltas", body, round_id).content).duplicate
    assert len(operator.get("privacy")["devices"]) == 2


def test_the_same_id_with_another_body_is_refused(operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    first, second = devices(2)
    round_id = operator.open(deltas={})
    assert first.send_counts(round_id, {3: 1}, report_id="same").status_code == 200
    assert refusal(first.send_counts(round_id, {3: 2}, report_id="same")) == (409, "report_conflict")
    assert refusal(first.send_delta(round_id, report_id="same")) == (409, "report_conflict")
    assert refusal(first.send_counts(round_id, {3: 1})) == (409, "already_reported")
    assert second.send_counts(round_id, {3: 1}, report_id="same").status_code == 200, "ids are a device's own"
    assert operator.get(f"rounds/{round_id}")["reports"] == {"marginals": 2, "deltas": 0, "words": 0}


BAD_MESSAGES: tuple[dict[str, Any], ...] = (
    *({"utterances": -1}, {"counts": {"x": 1}}, {"counts": {"1": 1.5}}, {"version": 2}),
    *({"report_id": "a b"}, {"report_id": "x" * 65}),
)
BAD_COUNTS: list[tuple[dict[int, int], dict[str, Any], tuple[int, str]]] = [
    *(({word: count}, {}, (422, "bad_counts")) for word, count in ((WORDS, 1), (1, 257), (1, 0), (1, 10**40))),
    (dict.fromkeys(range(21), 1), {}, (422, "bad_counts")),
    ({1: 1}, {"words_digest": "e" * 64}, (409, "other_words")),
    ({1: 1}, {"device_id": "somebody"}, (403, "other_device")),
    ({1: 1}, {"round_id": "r9-other"}, (422, "other_round")),
    ({1: 1}, {"utterances": 10**30}, (422, "utterances")),
    *(({1: 1}, changes, (422, "bad_message")) for changes in BAD_MESSAGES),
]


@pytest.mark.parametrize(("counts", "changes", "expected"), BAD_COUNTS)
def test_bad_marginals(operator: Operator, device: Party, counts, changes: dict[str, Any], expected) -> None:
    round_id = operator.open()
    assert refusal(device.send_counts(round_id, counts, **changes)) == expected
    assert operator.get(f"rounds/{round_id}")["reports"]["marginals"] == 0


def arrays(**changes: Any) -> dict[str, Any]:
    found = {"encoder.0.W": np.zeros((8, 6), np.float32), "joiner.output.bias": np.zeros(5, np.float32)} | changes
    return {name: values for name, values in found.items() if values is not None}


BAD_DELTAS: list[tuple[dict[str, Any], dict[str, Any], tuple[int, str], str]] = [
    ({"joiner.output.bias": None}, {}, (422, "bad_delta"), "joiner.output.bias: missing"),
    ({"joiner.output.bias": np.zeros(5)}, {}, (422, "bad_delta"), "dtype F64"),
    ({"joiner.output.bias": np.full(5, 9, np.float32)}, {}, (422, "bad_delta"), "clip before sending"),
    ({}, {"model_version": "older"}, (409, "stale_model"), "older"),
    ({}, {"utterances": 1}, (422, "too_few_utterances"), "at least 2"),
    ({}, {"utterances": 0}, (422, "bad_message"), "Input should be greater than or equal to 1"),
    ({}, {"report_id": "x" * 65}, (422, "bad_message"), "DeltaHeader: String should"),
    ({}, {"device_id": "somebody"}, (403, "other_device"), "device_id"),
    ({}, {"round_id": "r9-other"}, (422, "other_round"), "r9-other"),
    ({}, {"kind": "gradient"}, (422, "other_plan"), "kind: found gradient, the round asks for difference"),
    ({}, {"encoding": "int8"}, (422, "other_plan"), "encoding: found int8, the round asks for float32"),
    ({}, {"encoding": "int4"}, (422, "bad_message"), "DeltaHeader: Input should be"),
    ({"joiner.output.bias": np.zeros(5, np.int8)}, {}, (422, "bad_delta"), "joiner.output.bias: found int8"),
    ({"joiner.output.bias": np.zeros((0, 5), np.float32)}, {}, (422, "bad_delta"), "without a value"),
]


@pytest.mark.parametrize("case", BAD_DELTAS)
def test_bad_deltas(http: Any, operator: Operator, device: Party, case: tuple[Any, Any, tuple[int, str], str]) -> None:
    values, changes, expected, detail = case
    round_id = operator.open(deltas={"minimum_utterances": 2})
    answer = device.send_delta(round_id, arrays(**values), **{"utterances": 5} | changes)
    assert refusal(answer) == expected and detail in answer.json()["detail"]
    if expected[1] == "bad_delta":
        assert answer.json()["field"] in {*values, "delta"}
    assert list(http.app.state.service.blobs.names("deltas")) == []
    assert operator.get(f"rounds/{round_id}")["reports"]["deltas"] == 0


def test_deltas_without_a_header(operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={})
    for body in (b"", b"junk" * 10, dump_weights(arrays()), dump_weights(arrays(), {"header": "{}"})):
        assert refusal(device.post(f"/v1/rounds/{round_id}/deltas", body, round_id))[0] == 422


def test_rounds_that_take_no_report(operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={})
    assert refusal(device.send_counts("r9-none", {1: 1})) == (404, "unknown_round")
    operator.close(round_id)
    assert refusal(device.send_counts(round_id, {1: 1})) == (409, "round_closed")
    assert refusal(device.send_delta(round_id)) == (409, "round_closed")
    only_deltas = operator.open(marginals=None, deltas={})
    assert refusal(device.send_counts(only_deltas, {1: 1})) == (409, "not_collected")
    planned = operator.post("rounds", json={"open": False, "settings": {"deltas": {}, "no_privacy": True}})["id"]
    assert refusal(device.send_delta(planned)) == (409, "round_closed")
    # Signed for one round, sent to another: the signature binds the address.
    body = device.counts(only_deltas, {1: 1})
    headers = device.headers("POST", f"/v1/rounds/{round_id}/marginals", round_id, body)
    answer = device.http.request("POST", f"/v1/rounds/{only_deltas}/marginals", content=body, headers=headers)
    assert refusal(answer) == (401, "bad_signature")


UNSIGNED = (
    *({SIGNATURE: ""}, {DEVICE: ""}, {BODY_DIGEST: ""}, {NONCE: ""}, {NONCE: "short"}, {NONCE: "x" * 200}),
    *({TIMESTAMP: "soon"}, {TIMESTAMP: "1e9"}, {TIMESTAMP: "9" * 5000}),
)
FORGED = (
    *({SIGNATURE: b64encode(b"x" * 64).decode()}, {SIGNATURE: "not base64!"}),
    *({NONCE: "another-nonce"}, {BODY_DIGEST: "0" * 64}),
)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        *((changes, "unsigned") for changes in UNSIGNED),
        *((changes, "bad_signature") for changes in FORGED),
        ({DEVICE: "nobody"}, "unknown_device"),
        ({TIMESTAMP: "0"}, "stale_time"),
    ],
)
def test_bad_signatures(http: Any, device: Party, changes: dict[str, str], code: str) -> None:
    headers = device.headers("POST", "/v1/check-in", None, b"{}") | changes
    assert refusal(http.post("/v1/check-in", content=b"{}", headers=headers)) == (401, code)


def test_replays_stale_times_and_changed_bodies(http: Any, operator: Operator, device: Party) -> None:
    round_id = operator.open()
    path, body = f"/v1/rounds/{round_id}/marginals", device.counts(round_id, {1: 1})
    headers = device.headers("POST", path, round_id, body)
    assert http.post(path, content=body, headers=headers).status_code == 200
    assert refusal(http.post(path, content=body, headers=headers)) == (409, "replayed")
    assert refusal(http.post(path, content=body + b" ", headers=headers)) == (401, "bad_signature")
    for at in (time.time() - 1000, time.time() + 1000):
        assert refusal(device.post(path, body, round_id, at=at)) == (401, "stale_time")
    other = Party(device.http)
    other.id = device.id
    assert refusal(other.check_in()) == (401, "bad_signature")
    assert refusal(device.check_in(device_id="somebody")) == (403, "other_device")


def test_spent_nonces_are_forgotten_once_they_cannot_be_replayed(tmp_path: Path) -> None:
    now = [1000.0]
    with serving(tmp_path, clock=lambda: now[0], window_seconds=10.0) as http:
        device = Party(http).enrol()
        for _ in range(4):
            now[0] += 30.0
            assert device.post("/v1/check-in", b"{}", at=now[0]).status_code == 422
            assert device.post("/v1/check-in", device.arrival(), at=now[0]).status_code == 200
        with http.app.state.service.database.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM nonces").scalar() == 1


def test_bodies_are_bounded(http: Any, operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={})
    big = b"x" * (65 * 1024)
    assert refusal(device.post("/v1/check-in", big)) == (413, "too_large")
    assert refusal(device.post(f"/v1/rounds/{round_id}/deltas", big + big, round_id)) == (413, "too_large")

    def chunks() -> Iterator[bytes]:
        for _ in range(70):
            yield b"x" * 1024

    assert refusal(http.post("/v1/enrol", content=chunks())) == (413, "too_large")
    assert refusal(http.post("/v1/enrol", content=b"x", headers={"Content-Encoding": "gzip"})) == (415, "encoding")


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/nothing", (404, "no_such_route")),
        ("GET", "/v1/enrol", (405, "wrong_method")),
        ("GET", "/v1/models/none", (404, "unknown_model")),
        ("GET", "/v1/marginals/7", (404, "unknown_marginals")),
        ("GET", "/v1/marginals/x", (422, "bad_request")),
        ("GET", "/v1/marginals/-1", (404, "unknown_marginals")),
        ("GET", "/v1/operator/status", (401, "bad_token")),
        ("POST", "/v1/operator/rounds", (401, "bad_token")),
    ],
)
def test_bad_addresses(http: Any, method: str, path: str, expected: tuple[int, str]) -> None:
    assert refusal(http.request(method, path)) == expected


def test_deep_json_is_refused(http: Any, device: Party) -> None:
    body = b'{"settings":' * 5000 + b"1" + b"}" * 5000
    assert refusal(http.post("/v1/operator/rounds", content=body, headers=HEADERS))[0] in (413, 422)
    assert refusal(device.post("/v1/check-in", b"[" * 60_000)) == (422, "bad_message")


def test_an_unexpected_error_is_a_problem_too(http: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.app.state.service.database, "read", None)
    assert refusal(http.get("/v1/operator/status", headers=HEADERS)) == (500, "internal")


def test_released_counts_add_up_over_rounds(operator: Operator, device: Party) -> None:
    for _ in range(2):
        round_id = operator.open()
        device.send_counts(round_id, {5: 256})
        found = operator.close(round_id)
    top = operator.get(f"marginals/{found['marginals_version']}?top=1")["top"][0]
    assert (top["word"], top["released_count"]) == ("word5", 2.0)


def test_a_revoked_device_is_refused(operator: Operator, device: Party) -> None:
    operator.post(f"devices/{device.id}/revoke")
    operator.post(f"devices/{device.id}/revoke")
    assert refusal(device.check_in()) == (403, "device_revoked")
    again = device.http.request("POST", "/v1/enrol", json={"token": ENROLMENT, "public_key": device.public})
    assert refusal(again) == (403, "device_revoked")
