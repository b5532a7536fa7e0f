"""Rounds of every plan for marginals: what devices may send, what is released, what it costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from device_sdk.wire.messages import FIXED_POINT
from server.registry.marginals import find_marginals, read_counts, read_probabilities
from tests.server.parties import HEADERS, NO_NOISE, WORDS, Operator, Party, refusal


def released(operator: Operator, version: int) -> Any:
    with operator.http.app.state.service.database.read() as connection:
        row = find_marginals(connection, version)
        return read_counts(row), read_probabilities(row), row.variance


def test_mode_paper_releases_all_counts_so_far(operator: Operator, devices: Callable[[int], list[Party]]) -> None:
    """Each release takes the place of the one before, and its noise does not add up."""
    plan = {"mode": "paper", "epsilon": 50.0}
    first, second = devices(2)
    round_id = operator.open(marginals=plan, smoothing=1.0)
    offer = first.check_in().json()["round"]["marginals"]
    assert (offer["mode"], offer["epsilon"]) == ("paper", 50.0)
    many = dict.fromkeys(range(1, 30), 1000 * FIXED_POINT)
    assert first.send_counts(round_id, many).status_code == 200
    assert second.send_counts(round_id, {1: 500 * FIXED_POINT}).status_code == 200
    closed = operator.close(round_id)
    assert closed["releases"]["marginals"]["mechanism"]["mode"] == "paper"
    counts, probabilities, variance = released(operator, 1)
    assert counts[1] / FIXED_POINT == pytest.approx(1500, abs=2)
    assert probabilities[1] == pytest.approx(1500 / 29_500, rel=1e-2)
    assert variance == pytest.approx(2 / 50.0**2, rel=1e-2)
    round_id = operator.open(marginals=plan, smoothing=1.0)
    assert first.send_counts(round_id, {1: 2000 * FIXED_POINT}).status_code == 200
    operator.close(round_id)
    counts, _, variance = released(operator, 2)
    assert counts[1] / FIXED_POINT == pytest.approx(2000, abs=2)
    assert abs(counts[2]) / FIXED_POINT < 2
    assert variance == pytest.approx(2 / 50.0**2, rel=1e-2)
    line = operator.get("privacy")["streams"]["marginals"]
    assert (line["epsilon"], line["utterance_epsilon"], line["count_epsilon"]) == ("Infinity", "Infinity", 100.0)


def test_gaussian_rounds_add_up(operator: Operator, device: Party) -> None:
    plan = {"mechanism": "discrete_gaussian", "epsilon": 400.0}
    for number in (1, 2):
        round_id = operator.open(marginals=plan)
        assert device.check_in().json()["round"]["marginals"]["mechanism"] == "discrete_gaussian"
        assert device.send_counts(round_id, {3: FIXED_POINT}).status_code == 200
        mechanism = operator.close(round_id)["releases"]["marginals"]["mechanism"]
        assert (mechanism["name"], mechanism["delta"]) == ("discrete_gaussian", 1e-6)
        counts, _, variance = released(operator, number)
        assert variance == pytest.approx(number * mechanism["scale"] ** 2)
        assert counts[3] / FIXED_POINT == pytest.approx(number, abs=6 * variance**0.5)
    line = operator.get("privacy")["streams"]["marginals"]
    assert 400 < line["epsilon"] < 800


@pytest.mark.parametrize(
    ("plan", "counts", "words"),
    [
        ({"epsilon": NO_NOISE}, {1: FIXED_POINT + 1}, "expected 1 to 256 units"),
        ({"mode": "paper"}, {1: -5}, "expected 1 to"),
        ({"mode": "paper"}, {WORDS: 5}, "outside the word list"),
        ({"mode": "paper"}, {1: 1 << 41}, "expected 1 to"),
    ],
)
def test_counts_outside_their_plan_are_refused(
    operator: Operator, device: Party, plan: dict[str, Any], counts: dict[int, int], words: str
) -> None:
    answer = device.send_counts(operator.open(marginals=plan), counts)
    assert refusal(answer) == (422, "bad_counts") and words in answer.json()["detail"]


def test_shares_of_noise_are_not_taken_in_the_clear(operator: Operator, device: Party) -> None:
    round_id = operator.open(marginals=DISTRIBUTED | {"minimum_survivors": 3}, minimum=3)
    answer = device.send_counts(round_id, {1: 5})
    assert answer.status_code in (409, 422), answer.text
    assert "secure aggregation" in answer.json()["detail"]


DISTRIBUTED = {"trust": "distributed", "mechanism": "discrete_gaussian"}


@pytest.mark.parametrize(
    ("marginals", "minimum", "words"),
    [
        ({"trust": "distributed"}, 1, "mechanism: found discrete_laplace"),
        ({"mode": "paper", "trust": "local"}, 1, "mode 'paper' has central"),
        ({"minimum_survivors": 4}, 4, "only trust 'distributed' has shares"),
        (DISTRIBUTED | {"minimum_survivors": 4}, 3, "minimum: found 3"),
        ({"mechanism": "discrete_gaussian", "delta": 0.0}, 1, "delta"),
    ],
)
def test_impossible_plans_are_named(operator: Operator, marginals: dict[str, Any], minimum: int, words: str) -> None:
    settings = {"marginals": marginals, "minimum": minimum}
    answer = operator.http.post(operator.url + "rounds", json={"settings": settings}, headers=HEADERS)
    assert answer.status_code == 422 and words in answer.text
