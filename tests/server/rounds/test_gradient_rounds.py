"""Rounds of Rao et al. 2023: gradients, Adam, a teacher beside the model, rehearsal, one round after another."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.errors import StateError
from device_sdk.wire.delta_codec import encode
from device_sdk.wire.messages import CheckedIn
from server.plans.round import RoundSettings
from server.rounds.server_step import Weights
from server.service import Service
from tests.server import parties
from tests.server.parties import BIAS, Operator, Party, bias_moved, initial, refusal, serving, values_of, weights_of


def one_round(operator: Operator, device: Party, value: float = 0.01, **plan: Any) -> dict[str, Any]:
    """A round with one device that sends ``value`` everywhere, opened, answered and closed."""
    plan = {"deltas": {"kind": "gradient"}, "optimizer": {"learning_rate": 1.0}} | plan
    round_id = operator.open(marginals=None, **plan)
    version = operator.get("status")["model_version"]
    device.send_delta(round_id, value=value, model_version=version, kind=plan["deltas"]["kind"]).raise_for_status()
    return operator.close(round_id)


def test_a_gradient_is_descended(http: Any, operator: Operator, devices) -> None:
    round_id = operator.open(marginals=None, deltas={"kind": "gradient"}, optimizer={"learning_rate": 0.5})
    for device, value, utterances in zip(devices(2), (0.01, 0.04), (1, 2), strict=True):
        device.send_delta(round_id, value=value, kind="gradient", utterances=utterances).raise_for_status()
    found = operator.close(round_id)
    # The mean over all three utterances.
    assert np.allclose(bias_moved(http, found["model_version"]), -0.5 * (0.01 + 2 * 0.04) / 3, atol=1e-7)
    assert found["releases"]["deltas"]["mechanism"]["kind"] == "gradient"


def test_a_gradient_of_more_than_a_batch_is_refused(operator: Operator, device: Party) -> None:
    round_id = operator.open(marginals=None, deltas={"kind": "gradient", "batch_size": 4})
    assert refusal(device.send_delta(round_id, kind="gradient", utterances=5)) == (422, "too_many_utterances")


@pytest.mark.parametrize(("encoding", "error"), [("float32", 0.0), ("float16", 1e-3), ("int8", 0.02)])
def test_encoded_deltas_move_the_model(http: Any, operator, device: Party, encoding: Any, error: float) -> None:
    round_id = operator.open(marginals=None, deltas={"encoding": encoding, "clipping": "uniform", "scale_per": "row"})
    shapes, rng = parties.SHAPES.items(), np.random.default_rng(3)
    delta = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes}
    body = device.delta(round_id, encode(delta, encoding), encoding=encoding)
    assert device.post(f"/v1/rounds/{round_id}/deltas", body, round_id).status_code == 200
    assert device.post(f"/v1/rounds/{round_id}/deltas", body, round_id).json()["duplicate"]
    moved = weights_of(http, operator.close(round_id)["model_version"])
    for name, array in delta.items():
        assert np.linalg.norm(moved[name] - initial().weights[name] - array) / np.linalg.norm(array) <= error + 1e-5


def test_the_teacher_follows_at_its_interval_and_is_published_beside(http: Any, operator, device: Party) -> None:
    plan = {"teacher": {"decay": 0.75, "interval": 2}}
    base = initial().weights[BIAS]
    made = [one_round(operator, device, 0.01 * (number + 1), **plan) for number in range(4)]
    models = {entry["version"]: entry for entry in operator.get("models")["models"]}
    teachers = [models[found["model_version"]]["teacher"] for found in made]
    assert teachers[0] == "base-1", "the teacher begins as what the first round started from"
    assert teachers[1] == teachers[2] != teachers[0] and teachers[3] not in teachers[:3]
    students = [weights_of(http, found["model_version"])[BIAS] for found in made]
    first = 0.75 * base + 0.25 * students[1]
    assert np.allclose(weights_of(http, teachers[1])[BIAS], first, atol=1e-6)
    assert np.allclose(weights_of(http, teachers[3])[BIAS], 0.75 * first + 0.25 * students[3], atol=1e-6)
    assert models[teachers[3]]["parent"] == teachers[1]
    assert weights_of(http, teachers[3]).keys() == initial().weights.keys()
    told = CheckedIn.model_validate_json(device.check_in().content)
    assert (told.model_version, told.teacher_version) == (made[3]["model_version"], teachers[3])
    assert told.teacher_sha256 == models[teachers[3]]["sha256"]
    assert operator.get("status")["teacher_version"] == teachers[3]
    # Going back to an older model goes back to the teacher that was beside it.
    operator.post(f"models/{made[1]['model_version']}/publish")
    assert device.check_in().json()["teacher_version"] == teachers[1]
    again = one_round(operator, device, 0.05, **plan)
    assert again["teacher_version"] == teachers[1], "one model after the second: the interval has not passed again"


def test_a_teacher_that_is_never_updated_stays_the_base(operator: Operator, device: Party) -> None:
    for _ in range(2):
        found = one_round(operator, device, teacher={"decay": 1.0, "interval": 1})
    assert operator.get("status")["teacher_version"] == "base-1"
    found = one_round(operator, device)
    assert operator.get("status") | {"model_version": found["model_version"]} == operator.get("status")
    assert operator.get("status")["teacher_version"] is None, "a round without a teacher publishes none"


def rehearse(base: Weights, plan: RoundSettings, number: int) -> Iterator[Weights]:
    """Pseudo-devices whose gradients are known: 0.1 times the number of the round."""
    assert plan.rehearsal is not None and base["features.scale"].tolist() == [1, 1, 1, 1]
    yield from (values_of(0.1 * number) for _ in range(plan.rehearsal.pseudo_devices))


@pytest.fixture
def rehearsing(tmp_path: Path) -> Iterator[Any]:
    with serving(tmp_path, rehearse=rehearse) as client:
        yield client


@pytest.mark.parametrize(
    ("weighting", "weight", "expected"),
    [
        ("uniform", 1.0, (0.01 + 3 * 0.1) / 4),
        ("uniform", 0.5, (0.01 + 1.5 * 0.1) / 2.5),
        ("utterances", 1.0, (2 * 0.01 + 3 * 8 * 0.1) / (2 + 3 * 8)),
    ],
)
def test_pseudo_devices_count_with_their_weight(rehearsing: Any, weighting: str, weight, expected: float) -> None:
    operator, device = Operator(rehearsing), Party(rehearsing).enrol()
    rehearsal = {"pseudo_devices": 3, "batch_size": 8, "weight": weight}
    round_id = operator.open(marginals=None, deltas={"kind": "gradient"}, weighting=weighting, rehearsal=rehearsal)
    assert device.send_delta(round_id, value=0.01, kind="gradient", utterances=2).status_code == 200
    found = operator.close(round_id)
    assert np.allclose(bias_moved(rehearsing, found["model_version"]), -expected, atol=1e-6)
    assert found["releases"]["deltas"]["mechanism"]["pseudo_devices"] == 3


def test_with_noise_rehearsal_does_not_make_the_denominator_depend_on_who_came(rehearsing: Any) -> None:
    operator, device = Operator(rehearsing), Party(rehearsing).enrol()
    plan = {"marginals": None, "deltas": {"kind": "gradient", "noise_stddev": 1e-9}, "weighting": "uniform"}
    round_id = operator.open(**plan, goal=4, rehearsal={"pseudo_devices": 2})
    device.send_delta(round_id, value=0.01, kind="gradient")
    found = operator.close(round_id)
    assert found["releases"]["deltas"]["mechanism"]["denominator"] == 6
    assert np.allclose(bias_moved(rehearsing, found["model_version"]), -(0.01 + 2 * 0.1) / 6, atol=1e-6)


@pytest.mark.parametrize("wanted", ["rehearsal", "server_step"])
def test_a_server_without_speech_does_not_promise_any(http: Any, wanted: str) -> None:
    answer = http.post("/v1/operator/rounds", headers=parties.HEADERS, json={"settings": {"deltas": {}, wanted: {}}})
    assert (refusal(answer), answer.json()["field"]) == ((422, "no_rehearsal"), wanted)


def test_a_round_waits_for_the_speech_it_was_promised(tmp_path: Path) -> None:
    """Restarted without its corpus, the server keeps the round and says what is missing; with it, it goes on."""
    with serving(tmp_path, tick_seconds=600.0, rehearse=rehearse) as client:
        operator, device = Operator(client), Party(client).enrol()
        round_id = operator.open(marginals=None, deltas={"kind": "gradient"}, rehearsal={"pseudo_devices": 1})
        device.send_delta(round_id, value=0.01, kind="gradient")
    own = Service(parties.settings(tmp_path), initial())
    with pytest.raises(StateError, match="start it with --rehearsal"):
        own.close_round(round_id)
    own.close()
    with serving(tmp_path, tick_seconds=600.0, rehearse=rehearse) as client:
        found = Operator(client).close(round_id)
        assert found["state"] == "published"
        assert np.allclose(bias_moved(client, found["model_version"]), -(16 * 0.1 + 0.01) / 17, atol=1e-6)


def test_rounds_follow_one_another(operator: Operator, device: Party) -> None:
    """Three rounds of one plan with Adam: each opens on the model of the one before, whose optimizer goes on."""
    plan = {"deltas": {"kind": "gradient"}, "optimizer": {"kind": "adam", "learning_rate": 0.01}}
    round_id = operator.open(marginals=None, rounds=3, **plan)
    seen = []
    for left in (2, 1, 0):
        version = operator.get("status")["model_version"]
        assert device.send_delta(round_id, value=0.01, model_version=version, kind="gradient").status_code == 200
        seen.append(operator.close(round_id))
        assert seen[-1]["state"] == "published"
        underway = operator.get("status")["rounds"]
        assert len(underway) == (1 if left else 0)
        if left:
            assert (underway[0]["state"], underway[0]["settings"]["rounds"]) == ("open", left)
            assert underway[0]["base_model"] == seen[-1]["model_version"]
            round_id = underway[0]["id"]
    assert [entry["base_model"] for entry in seen] == ["base-1", seen[0]["model_version"], seen[1]["model_version"]]


def test_a_series_outlives_a_round_that_nobody_came_to_but_not_the_operator(operator: Operator) -> None:
    assert operator.close(operator.open(rounds=3))["state"] == "abandoned"
    (following,) = operator.get("status")["rounds"]
    assert following["settings"]["rounds"] == 2
    operator.post(f"rounds/{following['id']}/abandon")
    assert operator.get("status")["rounds"] == []
