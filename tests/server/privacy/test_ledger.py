"""The ledger: what is charged, how it composes, where it stops."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DatabaseError

from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.app import create_app
from server.privacy.gaussian import gaussian_epsilon
from server.privacy.ledger import Charge, Spent, charge_for, compose
from server.rounds.settings import RoundSettings
from server.service import Service
from tests.server.parties import Operator, Party, initial, settings

DELTA = 1e-6


def test_charges() -> None:
    plans = RoundSettings(
        marginals=MarginalPlan(epsilon=2.0),
        deltas=DeltaPlan(clip_norm=3.0, noise_stddev=0.5),
        weighting="uniform",
        goal=8,
        minimum=4,
    )
    counts, delta = charge_for("marginals", plans), charge_for("deltas", plans)
    assert (counts.epsilon, counts.mechanism, counts.trust) == (2.0, "discrete_laplace", "central")
    assert counts.sensitivity / counts.scale == pytest.approx(2.0)
    # The smallest cohort that may be released carries 4 shares of noise: 0.5 * sqrt(4).
    assert (delta.scale, delta.squared_ratio, delta.unbounded) == (1.0, 9.0, False)
    assert charge_for("deltas", RoundSettings(deltas=DeltaPlan())).unbounded


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (Spent(), (0.0, 0.0)),
        (Spent(epsilon=3.0), (3.0, 0.0)),
        (Spent(squared_ratio=4.0), (gaussian_epsilon(2.0, DELTA), DELTA)),
        (Spent(epsilon=1.0, squared_ratio=4.0), (1.0 + gaussian_epsilon(2.0, DELTA), DELTA)),
        (Spent(epsilon=1.0, unbounded=True), (math.inf, 0.0)),
        (Spent(epsilon=math.nan), (math.inf, 0.0)),
        (Spent(squared_ratio=-1.0), (math.inf, 0.0)),
    ],
)
def test_composition(total: Spent, expected: tuple[float, float]) -> None:
    assert compose(total, DELTA) == pytest.approx(expected)


def test_plus_adds_one_round() -> None:
    total = Spent().plus(Charge("x", "central", 1, 1, epsilon=0.5)).plus(Charge("none", "none", 1, 0, unbounded=True))
    assert total == Spent(0.5, 0.0, True, 2)


def test_summary_over_rounds(operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    first, second = devices(2)
    for number in range(2):
        round_id = operator.open(marginals={"epsilon": 0.5}, deltas={"noise_stddev": 2.0}, goal=9, weighting="uniform")
        assert first.send_counts(round_id, {1: 10}).status_code == 200
        if number == 0:
            assert second.send_counts(round_id, {1: 10}).status_code == 200
        answer = first.send_delta(round_id, model_version=operator.get("status")["model_version"])
        assert answer.status_code == 200, answer.text
        operator.close(round_id)
    found = operator.get("privacy")
    marginals, deltas = found["streams"]["marginals"], found["streams"]["deltas"]
    assert (marginals["epsilon"], marginals["delta"], marginals["rounds"], marginals["devices"]) == (1.0, 0.0, 2, 2)
    assert marginals["utterance_epsilon"] == 0.5
    assert marginals["trust_model"].startswith("central")
    assert deltas["epsilon"] == pytest.approx(gaussian_epsilon(math.sqrt(2) / 2, DELTA))
    assert (deltas["delta"], deltas["devices"]) == (DELTA, 1)
    assert {"adjacency", "sampling", "trust_model"} <= deltas.keys()
    assert [line["epsilon"] for line in found["devices"] if line["stream"] == "marginals"] == [1.0, 0.5]


def test_no_noise_is_infinite(operator: Operator, device: Party) -> None:
    round_id = operator.open(marginals=None, deltas={})
    assert device.send_delta(round_id).status_code == 200
    assert operator.get("privacy")["streams"]["deltas"]["epsilon"] == "Infinity"


def test_fails_closed_at_the_cap(tmp_path: Path) -> None:
    from fastapi.testclient import TestClient

    app = create_app(settings(tmp_path, marginals_cap=1.0, deltas_cap=50.0), initial())
    with TestClient(app) as http:
        operator, device = Operator(http), Party(http).enrol()
        for number in range(3):
            round_id = operator.open(marginals={"epsilon": 0.5})
            offer = device.check_in().json()["round"]
            answer = device.send_counts(round_id, {1: 1})
            operator.close(round_id)
            assert (offer is not None, answer.status_code) == ((True, 200) if number < 2 else (False, 403))
        assert answer.json()["code"] == "privacy_cap"
        round_id = operator.open(marginals=None, deltas={})
        refused = device.send_delta(round_id, model_version=operator.get("status")["model_version"])
        assert (refused.status_code, refused.json()["code"]) == (403, "privacy_cap")
        assert operator.get("privacy")["streams"]["marginals"]["epsilon"] == 1.0


@pytest.mark.parametrize("statement", ["DELETE FROM ledger", "UPDATE ledger SET epsilon = 0"])
def test_the_database_itself_keeps_it_append_only(http: Any, operator: Operator, device: Party, statement: str) -> None:
    device.send_counts(operator.open(), {1: 1})
    own: Service = http.app.state.service
    with pytest.raises(DatabaseError, match="append-only"), own.database.write() as connection:
        connection.exec_driver_sql(statement)
