"""Versions of models and marginals: where they start, how they are pushed, published and rolled back."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device_sdk.bundle import Bundle
from device_sdk.errors import ConfigurationError, IdiolectError, ProtocolError, StateError
from server.aggregation.weights_file import dump_weights, parse_weights
from server.registry.initial import initial_from_bundle
from server.registry.models import list_models, trainable
from server.service import Service
from tests.server.parties import HEADERS, WORDS, Operator, Party, initial, refusal, serving, settings


def test_a_bundle_is_where_a_server_starts(tiny_bundle: Bundle, tmp_path: Path) -> None:
    start = initial_from_bundle(tiny_bundle.path)
    assert start.version == tiny_bundle.version
    assert start.words[0] == "<unk>"
    assert trainable(start.weights) == dict(sorted(tiny_bundle.architecture.parameter_shapes().items()))
    with Service(settings(tmp_path), start) as own:
        assert own.status()["model_version"] == tiny_bundle.version
        with own.database.read() as connection:
            digest = connection.exec_driver_sql("SELECT sha256 FROM models").scalar_one()
        assert own.shapes(digest) == trainable(start.weights)


def test_starting_again_changes_nothing(tmp_path: Path) -> None:
    for start in (initial(), initial(), None, replace(initial(seed=5), version="other")):
        own = Service(settings(tmp_path), start)
        assert own.status()["model_version"] == "base-1"
        own.close()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"words_digest": "e" * 64}, ConfigurationError, "start a new database"),
        ({"weights": {"w": np.zeros(3, np.float32)}}, ProtocolError, "missing"),
        ({"background": np.full(WORDS, 0.5 / WORDS)}, ProtocolError, "sum is 0.5"),
    ],
)
def test_another_bundle_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[IdiolectError], message: str
) -> None:
    Service(settings(tmp_path), initial()).close()
    with pytest.raises(error, match=message):
        Service(settings(tmp_path), replace(initial(), **changes))


def test_a_new_database_needs_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="start the server with a bundle"):
        Service(settings(tmp_path), None)
    bad = replace(initial(), weights={"w": np.array([np.nan], np.float32)})
    with pytest.raises(ProtocolError, match="w: holds NaN"):
        Service(settings(tmp_path), bad)


def test_push_list_and_roll_back_models(http: Any, operator: Operator) -> None:
    weights = {name: values + 1 for name, values in initial().weights.items()}
    pushed = operator.post("models/v2", content=dump_weights(weights), params={"note": "by hand"})
    assert (pushed["parent"], pushed["note"]) == ("base-1", "by hand (pushed by bootstrap)")
    assert operator.get("status")["model_version"] == "v2"
    served = parse_weights(http.get("/v1/models/v2").content)
    assert all(np.array_equal(served[name], values) for name, values in weights.items())
    operator.post("models/v3", content=dump_weights(initial().weights), params={"published": False})
    assert operator.get("status")["model_version"] == "v2"
    operator.post("models/base-1/publish", params={"note": "worse on real voices"})
    found = operator.get("models")
    assert found["current"] == "base-1"
    assert [entry["version"] for entry in found["history"]] == ["base-1", "v2", "base-1"]
    assert {entry["version"] for entry in found["models"]} == {"base-1", "v2", "v3"}
    operator.post("models/v2", content=dump_weights(weights))  # the same weights again change nothing
    for path, content, status, code in (
        ("models/v2", dump_weights(initial().weights), 409, "version_exists"),
        ("models/v4", dump_weights({"w": np.zeros(3, np.float32)}), 422, "bad_weights"),
        ("models/v4", b"junk", 422, "bad_weights"),
        ("models/a%20b", dump_weights(weights), 422, "bad_request"),
        ("models/none/publish", b"", 404, "unknown_model"),
    ):
        assert refusal(http.post(f"/v1/operator/{path}", content=content, headers=HEADERS)) == (status, code)


def test_a_device_learns_of_a_push_at_its_check_in(operator: Operator, device: Party) -> None:
    stored = operator.post("models/v2", content=dump_weights(initial(seed=3).weights))
    answer = device.check_in().json()
    assert (answer["model_version"], answer["model_sha256"]) == ("v2", stored["sha256"])


def encoded(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"probabilities": b64encode(values.astype("<f8").tobytes()).decode()}


def test_push_and_publish_marginals(http: Any, operator: Operator) -> None:
    lifted = np.full(WORDS, 0.5 / (WORDS - 1))
    lifted[3] = 0.5
    pushed = operator.post("marginals", json=encoded(lifted) | {"note": "news"})
    assert (pushed["version"], pushed["parent"], pushed["note"]) == (1, 0, "news (pushed by bootstrap)")
    assert operator.get("marginals/1?top=1")["top"][0]["word"] == "word3"
    operator.post("marginals", json=encoded(lifted) | {"publish": False})
    assert operator.get("marginals")["current"] == 1
    operator.post("marginals/0/publish")
    found = operator.get("marginals")
    assert (found["current"], len(found["marginals"]), len(found["history"])) == (0, 3, 3)
    assert http.post("/v1/operator/marginals/9/publish", headers=HEADERS).status_code == 404


@pytest.mark.parametrize(
    "content",
    [
        *map(encoded, (np.full(WORDS - 1, 1 / (WORDS - 1)), np.full(WORDS, 0.5 / WORDS), np.full(WORDS, np.nan))),
        encoded(np.append(np.full(WORDS - 1, 1 / (WORDS - 1)), 0.0)),
        {"probabilities": "not base64"},
        {"probabilities": "AAAA"},
    ],
)
def test_bad_marginals_are_refused(http: Any, content: dict[str, Any]) -> None:
    assert refusal(http.post("/v1/operator/marginals", json=content, headers=HEADERS)) == (422, "bad_marginals")


def test_old_weights_go_and_what_is_needed_stays(tmp_path: Path) -> None:
    """A long series of rounds keeps a bounded number of weights; what anything still needs stays."""
    with pytest.raises(ConfigurationError, match="keep_models: found 1"):
        settings(tmp_path, keep_models=1)
    with serving(tmp_path, keep_models=2) as http:
        keep_what_is_needed(http, Operator(http), Party(http).enrol())


def keep_what_is_needed(http: Any, operator: Operator, device: Party) -> None:
    own = http.app.state.service
    plan = {"deltas": {}, "optimizer": {"kind": "adam", "learning_rate": 0.01}, "teacher": {"interval": 2}}
    operator.post("rounds", json={"settings": {"marginals": None, "rounds": 8} | plan})
    made = []
    for _ in range(7):
        (round_,) = operator.get("status")["rounds"]
        version = operator.get("status")["model_version"]
        assert device.send_delta(round_["id"], model_version=version).status_code == 200
        made.append(operator.close(round_["id"])["model_version"])
        stored = list(own.blobs.names("models"))
        # The base, two models with their optimizer states, the current teacher, and at most one more that is new.
        assert len(stored) <= 8, stored
    with own.database.read() as connection:
        rows = {row.version: row for row in list_models(connection)}
    assert len(rows) == 1 + 7 + 3, "lineage stays: the base, seven models, three teachers"
    current = operator.get("status")
    assert current["model_version"] == made[-1]
    for version in ("base-1", made[-1], current["teacher_version"]):
        assert http.get(f"/v1/models/{version}").status_code == 200
    back = http.post(f"/v1/operator/models/{made[0]}/publish", headers=HEADERS)
    assert refusal(http.get(f"/v1/models/{made[0]}")) == (410, "model_removed")
    assert (back.status_code, back.json()["field"]) == (410, "version")
    assert operator.post("models/base-1/publish")["version"] == "base-1"
