"""Buffered asynchronous rounds: what is stale, what it weighs, and that a late delta is neither lost nor doubled."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from server.aggregation.weights_file import parse_weights
from server.app import create_app
from server.plans.round import BufferPlan, RoundSettings
from server.rounds import advance as advancing
from server.rounds.weights import staleness_weight
from server.service import Service
from tests.server.parties import HEADERS, Operator, Party, initial, settings

BIAS = "joiner.output.bias"
BUFFERED: dict[str, Any] = {"deltas": {}, "weighting": "uniform", "buffered": {}, "goal": 2, "rounds": 20}


def bias(http: Any, version: str) -> np.ndarray:
    return parse_weights(http.get(f"/v1/models/{version}").content)[BIAS]


def current(operator: Operator) -> tuple[str, str]:
    """(id of the open round, version of the current model)."""
    status = operator.get("status")
    return str(status["rounds"][-1]["id"]), str(status["model_version"])


def wait_for_model(operator: Operator, before: str) -> str:
    for _ in range(400):
        round_id, version = current(operator) if operator.get("status")["rounds"] else ("", before)
        state = operator.get(f"rounds/{round_id}")["state"] if round_id else ""
        if version != before and state == "open":
            return version
        threading.Event().wait(0.05)
    raise AssertionError("no new model")


@pytest.mark.parametrize(
    ("staleness", "kind", "weight"),
    [(0, "inverse_root", 1.0), (1, "inverse_root", 2**-0.5), (8, "inverse_root", 1 / 3), (8, "constant", 1.0)],
)
def test_staleness_weights(staleness: int, kind: Any, weight: float) -> None:
    assert staleness_weight(BufferPlan(staleness_weight=kind), staleness) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": None}, "goal"),
        ({"marginals": {}}, "marginals"),
        ({"words": {}}, "words: found a plan in a buffered round"),
        ({"weighting": "utterances"}, "weighting, averaging"),
        ({"averaging": "median"}, "weighting, averaging"),
        ({"sampling": {}}, "sampling"),
        ({"deltas": {"noise_stddev": 0.1}}, r"buffered\.staleness_weight"),
        ({"noise_multiplier": 1.0}, r"buffered\.staleness_weight"),
        ({"deltas": None}, "none of them|buffered"),
    ],
)
def test_settings_that_contradict_themselves(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RoundSettings.model_validate({"marginals": None} | BUFFERED | changes)
    constant = {"noise_multiplier": 1.0, "buffered": {"staleness_weight": "constant"}}
    assert RoundSettings.model_validate({"marginals": None} | BUFFERED | constant).denominator(None) == 2.0


def test_deltas_on_two_models_by_the_algebra(
    http: Any, operator: Operator, devices: Callable[[int], list[Party]]
) -> None:
    """K = 2: w1 = w0 + (a + b) / 2, then w2 = w1 + (c + d / sqrt(2)) / 2 where d was made on w0."""
    one, two, three, four = devices(4)
    operator.open(marginals=None, **BUFFERED)
    first, base = current(operator)
    for device, value in ((one, 0.04), (two, 0.02)):
        assert device.check_in().json()["round"]["model_version"] == "base-1"
        assert device.send_delta(first, value=value).status_code == 200
    version = wait_for_model(operator, base)
    assert bias(http, version) - initial().weights[BIAS] == pytest.approx(0.03, abs=1e-6)
    second, _ = current(operator)
    offer = four.check_in(model_version="base-1").json()
    assert (offer["round"]["round_id"], offer["round"]["model_version"]) == (second, "base-1"), "its own, though older"
    assert offer["model_version"] == version, "and what to fetch afterwards"
    assert three.check_in(model_version=version).json()["round"]["model_version"] == version
    assert three.send_delta(second, value=0.05, model_version=version).status_code == 200
    assert four.send_delta(second, value=0.03).status_code == 200
    third = wait_for_model(operator, version)
    assert bias(http, third) - bias(http, version) == pytest.approx((0.05 + 0.03 / math.sqrt(2)) / 2, abs=1e-6)
    mechanism = operator.get(f"rounds/{second}")["releases"]["deltas"]["mechanism"]
    assert (mechanism["denominator"], mechanism["stale"]) == (2.0, 1)


def test_fewer_than_the_buffer_holds_make_a_smaller_step(http: Any, operator: Operator, device: Party) -> None:
    round_id = operator.open(marginals=None, **BUFFERED | {"goal": 4})
    device.send_delta(round_id, value=0.04)
    found = operator.close(round_id)
    assert bias(http, found["model_version"]) - initial().weights[BIAS] == pytest.approx(0.01, abs=1e-6)


@pytest.mark.parametrize("limit", [0, 1])
def test_what_is_too_stale_or_of_another_lineage_is_refused(
    operator: Operator, devices: Callable[[int], list[Party]], limit: int
) -> None:
    fleet = devices(4)
    plan = BUFFERED | {"goal": 1, "buffered": {"staleness_limit": limit}}
    round_id = operator.open(marginals=None, **plan)
    version = "base-1"
    for device in fleet[:2]:
        assert device.send_delta(round_id, model_version=version).status_code == 200
        version = wait_for_model(operator, version)
        round_id, _ = current(operator)
    for old in ("base-1", "never-published"):
        offer = fleet[2].check_in(model_version=old).json()["round"]
        assert offer["model_version"] == version, "fetch the round's own first"
        answer = fleet[2].send_delta(round_id, model_version=old)
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (
            409,
            "stale_model",
            "model_version",
        )


def test_a_late_delta_goes_into_the_open_round_and_is_counted_once(
    http: Any, operator: Operator, devices: Callable[[int], list[Party]]
) -> None:
    one, two, late = devices(3)
    first = operator.open(marginals=None, **BUFFERED)
    body = late.delta(first, value=0.06)
    for device in (one, two):
        device.send_delta(first, value=0.02)
    version = wait_for_model(operator, "base-1")
    second, _ = current(operator)
    path = f"/v1/rounds/{first}/deltas"
    for duplicate in (False, True, True):
        answer = late.post(path, body, first)
        assert (answer.status_code, answer.json()["duplicate"]) == (200, duplicate), answer.text
    assert operator.get(f"rounds/{second}")["reports"]["deltas"] == 1
    again = late.send_delta(second, model_version=version)
    assert (again.status_code, again.json()["code"]) == (409, "already_reported")
    assert late.check_in(model_version=version).json()["round"] is None
    assert one.send_delta(second, value=0.0, model_version=version).status_code == 200
    third = wait_for_model(operator, version)
    assert bias(http, third) - bias(http, version) == pytest.approx(0.06 / math.sqrt(2) / 2, abs=1e-6)
    assert late.post(path, body, first).json()["duplicate"], "rounds later, too"


def test_between_rounds_a_delta_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one round's model is being made, the next is not open: what comes is not refused for good."""
    from fastapi.testclient import TestClient

    whole = advancing.release_deltas
    making, go = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **named: Any) -> Any:
        making.set()
        assert go.wait(30)
        return whole(*arguments, **named)

    monkeypatch.setattr(advancing, "release_deltas", slowly)
    with TestClient(create_app(settings(tmp_path), initial())) as http:
        operator, one, late = Operator(http), Party(http).enrol(), Party(http).enrol()
        first = operator.open(marginals=None, **BUFFERED | {"goal": 1, "rounds": 2})
        one.send_delta(first)
        assert making.wait(30)
        body = late.delta(first)
        answer = late.post(f"/v1/rounds/{first}/deltas", body, first)
        assert (answer.status_code, answer.json()["code"]) == (503, "between_rounds")
        go.set()
        wait_for_model(operator, "base-1")
        assert late.post(f"/v1/rounds/{first}/deltas", body, first).status_code == 200
        second = str(operator.get("rounds")["rounds"][0]["id"])
        for _ in range(400):
            if operator.get(f"rounds/{second}")["state"] == "published":
                break
            threading.Event().wait(0.05)
        assert operator.get(f"rounds/{second}")["releases"]["deltas"]["reports"] == 1
        over = one.post(f"/v1/rounds/{first}/deltas", one.delta(first, report_id=secrets.token_hex(8)), first)
        assert (over.status_code, over.json()["code"]) == (409, "round_closed"), "no round is to come"


def test_a_synchronous_round_takes_no_stale_delta(operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    one, two = devices(2)
    first = operator.open(marginals=None, deltas={})
    one.send_delta(first)
    version = str(operator.close(first)["model_version"])
    second = operator.open(marginals=None, deltas={})
    assert two.check_in().json()["round"]["model_version"] == version
    assert two.send_delta(second).json()["code"] == "stale_model"
    assert two.send_delta(first).json()["code"] == "round_closed"


def test_a_cut_buffered_round_makes_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    made: list[str] = []
    store = advancing.store_release

    def cut(connection: Any, row: Any, release: Any, now: float) -> None:
        made.append(release.stored.sha256)
        if len(made) in (1, 3):
            raise KeyboardInterrupt
        store(connection, row, release, now)

    monkeypatch.setattr(advancing, "store_release", cut)
    with TestClient(create_app(settings(tmp_path, tick_seconds=60.0), initial())) as http:
        operator, devices = Operator(http), [Party(http).enrol() for _ in range(3)]
        own: Service = http.app.state.service
        round_id, version = operator.open(marginals=None, **BUFFERED | {"goal": 4}), "base-1"
        for number in range(2):
            for index, device in enumerate(devices[: 2 + number]):
                made_on = "base-1" if index == 0 else version
                assert device.send_delta(round_id, value=0.01 * (index + 1), model_version=made_on).status_code == 200
            with pytest.raises(KeyboardInterrupt):
                own.close_round(round_id)
            found = own.close_round(round_id)
            assert found["state"] == "published"
            round_id, version = current(operator)[0], found["model_version"]
        assert made[0] == made[1] and made[2] == made[3] != made[0]


def test_the_operator_is_told_what_a_buffered_round_needs(http: Any) -> None:
    plan = {"settings": {"marginals": None, "deltas": {}, "buffered": {}, "weighting": "uniform"}}
    answer = http.post("/v1/operator/rounds", json=plan, headers=HEADERS)
    assert answer.status_code == 422 and "goal" in answer.json()["detail"]
