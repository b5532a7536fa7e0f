"""The state machine, and what a stopped server finds when it starts again."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.errors import IdiolectError, LearningError
from server.plans.round import RoundSettings
from server.privacy import noise
from server.registry.marginals import find_marginals, read_counts
from server.rounds import releases as releasing
from server.rounds.evaluation import Evaluation
from server.service import Service
from tests.server.parties import HEADERS, Devices, Operator, Party, initial, serving, until
from tests.server.releases.rounds import go_on
from tests.server.rounds.test_sampling import AMPLIFIED, NOISED

UNIFORM: dict[str, Any] = {"marginals": None, "deltas": {}, "weighting": "uniform", "goal": 4}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"marginals": None}, "found none of them"),
        ({"goal": 2, "minimum": 3}, "at least minimum = 3"),
        ({"deltas": {"noise_stddev": 0.1}}, "weighting"),
        ({"deltas": {"noise_stddev": 0.1}, "weighting": "uniform"}, "denominator must be fixed"),
        ({"marginals": {"epsilon": float("inf")}}, "epsilon"),
        ({"marginals": {"max_weight": 1e300}}, "max_weight"),
        ({"deltas": {"clip_norm": float("nan")}}, "clip_norm|greater"),
        ({"optimizer": {"momentum": 1.0}}, "optimizer"),
        ({"teacher": {}}, "teacher: found a plan without one for deltas"),
        ({"rehearsal": {}}, "rehearsal: found a plan without one for deltas"),
        ({"deltas": {"kind": "gradient", "minimum_utterances": 20}}, "at most batch_size = 16"),
        ({"words": {"epsilon": 1e300}}, "epsilon"),
        ({"words": {"delta": 1.0}}, "delta"),
        # weighting and averaging
        (UNIFORM | {"weighting": "loss", "deltas": {"noise_stddev": 0.1}}, "weights by loss depend on the data"),
        (UNIFORM | {"weighting": "word_errors", "noise_multiplier": 1.0}, "weights by word_errors depend"),
        (UNIFORM | {"weighting": "loss", "averaging": "cosine"}, "devices count alike with averaging 'cosine'"),
        (UNIFORM | {"weighting": "loss", "deltas": {"measure": "word_error"}}, "deltas.measure"),
        (UNIFORM | {"deltas": {"measure": "loss"}}, "deltas.measure: found 'loss', expected 'none'"),
        (UNIFORM | {"server_step": {}, "deltas": None, "marginals": {}}, "server_step"),
        ({"deltas": {}, "averaging": "cosine"}, "weighting: devices count alike"),
        (UNIFORM | {"averaging": "cosine", "deltas": {"noise_stddev": 0.1}}, "found 'cosine', whose noise is not acc"),
        # sampling
        ({"sampling": {"kind": "fixed", "rate": 0.1}}, "rate"),
        ({"sampling": {"rate": 0.1, "over_selection": 2.0}}, "over_selection"),
        ({"sampling": AMPLIFIED | {"kind": "fixed", "rate": None}, "goal": 5}, "kind"),
        ({"sampling": {"amplified": True, "over_selection": 2.0}}, "over_selection: found 2.0; amplified"),
        ({"sampling": {"amplified": True}}, "rate: found none"),
        ({"sampling": {}}, "sampling.rate, goal"),
        ({"sampling": AMPLIFIED, "goal": 5}, "goal: found 5"),
        ({"sampling": AMPLIFIED, "minimum": 5}, "minimum: found 5"),
        ({"sampling": AMPLIFIED, "marginals": {"trust": "local"}}, "marginals"),
        ({"sampling": AMPLIFIED, "marginals": {"mode": "paper"}}, "marginals"),
        ({"sampling": AMPLIFIED, "deltas": {}}, "noise_multiplier: found 0"),
        ({"sampling": AMPLIFIED, "words": {}}, "words: found a plan in an amplified round"),
        (NOISED | {"deltas": {"noise_stddev": 0.1}}, "noise_multiplier: found the server's noise and"),
        (NOISED | {"deltas": {"encoding": "int8"}}, "deltas.encoding"),
        (NOISED | {"weighting": "utterances"}, "weighting"),
        (NOISED | {"sampling": None}, "goal: with noise"),
        ({"noise_multiplier": 1.0}, "noise_multiplier: found noise without"),
    ],
)
def test_settings_that_contradict_themselves(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RoundSettings.model_validate(fields)


def test_one_round_is_open_at_a_time(http: Any, operator: Operator) -> None:
    planned = operator.post("rounds", json={"open": False})["id"]
    round_id = operator.open()
    for path in ("rounds", f"rounds/{planned}/open"):
        assert http.post(f"/v1/operator/{path}", headers=HEADERS).json()["code"] == "round_open"
    assert http.post(f"/v1/operator/rounds/{planned}/close", headers=HEADERS).json()["code"] == "wrong_state"
    operator.post(f"rounds/{round_id}/abandon")
    assert operator.post(f"rounds/{planned}/open")["state"] == "open"
    assert [entry["state"] for entry in operator.get("rounds")["rounds"]] == ["abandoned", "open"]
    assert [entry["id"] for entry in operator.get("status")["rounds"]] == [planned]
    assert http.post(f"/v1/operator/rounds/{round_id}/abandon", headers=HEADERS).json()["code"] == "wrong_state"


def test_closes_by_itself_when_every_stream_has_its_goal(operator: Operator, devices: Devices) -> None:
    round_id = operator.open(deltas={}, goal=2)
    first, second, third = devices(3)
    for device in (first, second):
        device.send_counts(round_id, {1: 256})
    assert third.send_counts(round_id, {1: 256}).json()["code"] == "round_closed"
    assert third.check_in().json()["round"]["marginals"] is None
    assert operator.get(f"rounds/{round_id}")["state"] == "open"
    for device in (first, second):
        device.send_delta(round_id)
    until(lambda: operator.get(f"rounds/{round_id}")["state"] == "published")
    assert operator.close(round_id)["marginals_version"] == 1


def test_the_deadline_closes_a_round(operator: Operator, device: Party) -> None:
    round_id = operator.open(seconds=2.0)  # enough to report on a busy machine
    device.send_counts(round_id, {1: 256})
    until(lambda: operator.get(f"rounds/{round_id}")["state"] == "published")
    empty = operator.open(seconds=0.01)
    until(lambda: operator.get(f"rounds/{empty}")["state"] == "abandoned")
    assert "fewer than the minimum" in operator.get(f"rounds/{empty}")["note"]


def test_below_the_minimum_nothing_is_released(operator: Operator, devices: Devices) -> None:
    round_id = operator.open(deltas={}, minimum=2)
    first, second = devices(2)
    first.send_counts(round_id, {1: 256})
    second.send_counts(round_id, {1: 256})
    first.send_delta(round_id)
    found = operator.close(round_id)
    assert (found["state"], found["model_version"], list(found["releases"])) == ("published", None, ["marginals"])
    lone = operator.open(minimum=2)
    first.send_counts(lone, {1: 256})
    assert operator.close(lone)["state"] == "abandoned" and operator.get("status")["marginals_version"] == 1


def test_a_diverging_optimizer_publishes_nothing(operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={"clip_norm": 1e8}, optimizer={"learning_rate": 1e38})
    device.send_counts(round_id, {1: 256})
    device.send_delta(round_id, value=1e6)
    found = operator.close(round_id)
    assert (found["model_version"], found["marginals_version"]) == (None, 1)
    assert "diverged" in str(found["transitions"])


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Evaluation(True, {"wer": 0.4}, "better"), "published"),
        (Evaluation(False, {"wer": 0.9}, "worse"), "abandoned"),
        (LearningError("cannot be decoded"), "abandoned"),
    ],
)
def test_the_evaluation_decides(tmp_path: Path, verdict: Evaluation | IdiolectError, state: str) -> None:
    seen: list[set[str]] = []

    def evaluate(weights: Any, base: Any) -> Evaluation:
        assert np.array_equal(base["encoder.0.W"], initial().weights["encoder.0.W"])
        assert not np.array_equal(weights["encoder.0.W"], base["encoder.0.W"])
        seen.append(set(weights))
        if isinstance(verdict, IdiolectError):
            raise verdict
        return verdict

    with serving(tmp_path, tick_seconds=60.0, evaluate=evaluate) as http:
        operator, device = Operator(http), Party(http).enrol()
        round_id = operator.open(deltas={})
        device.send_delta(round_id)
        found = operator.close(round_id)
        assert found["state"] == state and seen == [set(initial().weights)]
        assert operator.get("status")["model_version"] == (found["model_version"] if state == "published" else "base-1")
        assert str(verdict.note if isinstance(verdict, Evaluation) else verdict) in found["evaluation"]["note"]


def test_local_noise_is_not_noised_again(operator: Operator, device: Party, http: Any) -> None:
    round_id = operator.open(marginals={"epsilon": 0.01, "trust": "local"})
    assert device.send_counts(round_id, {word: -100 * word for word in range(40)}).status_code == 200
    found = operator.close(round_id)
    with http.app.state.service.database.read() as connection:
        row = find_marginals(connection, found["marginals_version"])
    assert read_counts(row).tolist() == [-100 * word for word in range(40)] and row.variance > 1e6


def test_two_workers_draw_one_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both draw from the one stored key, and the second one finds the round aggregated."""
    with serving(tmp_path, tick_seconds=60.0) as http:
        operator, device = Operator(http), Party(http).enrol()
        round_id = operator.open(marginals={"epsilon": 0.1})
        device.send_counts(round_id, {7: 256})
        own: Service = http.app.state.service
        both = threading.Barrier(2)
        draws: list[Any] = []

        def together(*arguments: Any) -> Any:
            both.wait(20)
            draws.append(noise.add_noise(*arguments))
            return draws[-1]

        monkeypatch.setattr(releasing, "add_noise", together)
        with own.database.write() as connection:
            connection.exec_driver_sql(f"UPDATE rounds SET state = 'closing' WHERE id = '{round_id}'")
        workers = [threading.Thread(target=go_on, args=(own, round_id)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(30)
        assert operator.get(f"rounds/{round_id}")["state"] == "published"
        assert len(draws) == 2 and np.array_equal(*draws)
        with own.database.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM releases").scalar() == 1
            assert connection.exec_driver_sql("SELECT count(*) FROM publications").scalar() == 3
