"""Versions of models and marginals: where they start, how they are pushed, published, rolled back and removed."""

from __future__ import annotations

from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from device_sdk.bundle import Bundle
from device_sdk.checkin.updates import difference
from device_sdk.errors import ConfigurationError, ProtocolError, StateError
from server.aggregation.weights_file import dump_weights, parse_weights
from server.registry.differences import RECENT
from server.registry.initial import initial_from_bundle
from server.registry.models import list_models, trainable
from server.service import Service
from tests.server.parties import HEADERS, WORDS, Operator, Party, initial, refusal, serving, settings, weights_of


def test_a_bundle_is_where_a_server_starts(tiny_bundle: Bundle, tmp_path: Path) -> None:
    start = initial_from_bundle(tiny_bundle.path)
    assert start.version == tiny_bundle.version and start.words[0] == "<unk>"
    assert trainable(start.weights) == dict(sorted(tiny_bundle.architecture.parameter_shapes().items()))
    with Service(settings(tmp_path), start) as own:
        assert own.status()["model_version"] == tiny_bundle.version
        with own.database.read() as connection:
            digest = connection.exec_driver_sql("SELECT sha256 FROM models").scalar_one()
        assert own.shapes(digest, "whole") == trainable(start.weights)


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
def test_another_bundle_is_refused(tmp_path: Path, changes: dict[str, Any], error, message: str) -> None:
    Service(settings(tmp_path), initial()).close()
    with pytest.raises(error, match=message):
        Service(settings(tmp_path), replace(initial(), **changes))


def test_a_new_database_needs_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="start the server with a bundle"):
        Service(settings(tmp_path), None)
    bad = replace(initial(), weights={"w": np.array([np.nan], np.float32)})
    with pytest.raises(ProtocolError, match="w: holds NaN"):
        Service(settings(tmp_path), bad)


def test_push_list_and_roll_back_models(http: Any, operator: Operator, device: Party) -> None:
    weights = {name: values + 1 for name, values in initial().weights.items()}
    pushed = operator.post("models/v2", content=dump_weights(weights), params={"note": "by hand"})
    assert (pushed["parent"], pushed["note"]) == ("base-1", "by hand (pushed by bootstrap)")
    answer = device.check_in().json()
    assert (answer["model_version"], answer["model_sha256"]) == ("v2", pushed["sha256"])
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
    plan = {"deltas": {}, "optimizer": {"kind": "adam", "learning_rate": 0.01}, "teacher": {"interval": 2}}
    with serving(tmp_path, keep_models=2) as http:
        operator, device, made = Operator(http), Party(http).enrol(), []
        operator.post("rounds", json={"settings": {"marginals": None, "rounds": 8, "no_privacy": True} | plan})
        for _ in range(7):
            (round_,) = operator.get("status")["rounds"]
            version = operator.get("status")["model_version"]
            assert device.send_delta(round_["id"], model_version=version).status_code == 200
            made.append(operator.close(round_["id"])["model_version"])
            stored = list(http.app.state.service.blobs.names("models"))
            # The base, two models with their optimizer states, the current teacher, and at most one more that is new.
            assert len(stored) <= 8, stored
        with http.app.state.service.database.read() as connection:
            assert len(list_models(connection)) == 1 + 7 + 3, "lineage stays: the base, seven models, three teachers"
        current = operator.get("status")
        assert current["model_version"] == made[-1]
        for version in ("base-1", made[-1], current["teacher_version"]):
            assert http.get(f"/v1/models/{version}").status_code == 200
        back = http.post(f"/v1/operator/models/{made[0]}/publish", headers=HEADERS)
        assert refusal(http.get(f"/v1/models/{made[0]}")) == (410, "model_removed")
        assert (back.status_code, back.json()["field"]) == (410, "version")
        assert operator.post("models/base-1/publish")["version"] == "base-1"


BASE = initial().weights["encoder.0.W"]
DECAY, RATE, FIRST, SECOND, EPSILON = 0.75, 0.125, 0.9, 0.99, 1e-3
ADAM = {"kind": "adam", "learning_rate": RATE, "momentum": FIRST, "second_momentum": SECOND, "epsilon": EPSILON}
PLAN = {"marginals": {"epsilon": 1e8}, "deltas": {"clip_norm": 100.0}, "weighting": "utterances", "optimizer": ADAM}
PLAN |= {"teacher": {"decay": DECAY, "interval": 2}, "no_privacy": True}

Array = NDArray[np.float64]


class Line:
    """What a lineage should be, in float64: Adam (Reddi et al. 2021 without the bias left in) and an averaged teacher,
    taken after every second model."""

    def __init__(self) -> None:
        self.weights, self.teacher = BASE.astype(np.float64), BASE.astype(np.float64)
        self.first = self.second = np.zeros_like(self.weights)
        self.steps = 0
        self.since = 0

    def step(self, mean: float) -> Line:
        self.steps += 1
        gradient = np.full_like(self.weights, -mean)
        self.first = FIRST * self.first + (1 - FIRST) * gradient
        self.second = SECOND * self.second + (1 - SECOND) * gradient**2
        unbiased = self.first / (1 - FIRST**self.steps), self.second / (1 - SECOND**self.steps)
        self.weights = self.weights - RATE * unbiased[0] / (np.sqrt(unbiased[1]) + EPSILON)
        self.since += 1
        if self.since == 2:
            self.teacher, self.since = DECAY * self.teacher + (1 - DECAY) * self.weights, 0
        return self


class Scene:
    def __init__(self, http: Any) -> None:
        self.http, self.operator = http, Operator(http)

    def round(self, *sent: tuple[float, int]) -> dict[str, Any]:
        """One round on what is current. sent: value of a delta and utterances, a device each."""
        base = self.operator.get("status")["model_version"]
        round_id = str(self.operator.post("rounds", json={"settings": PLAN})["id"])
        for value, utterances in sent:
            party = Party(self.http).enrol()
            party.send_delta(round_id, value=value, utterances=utterances, model_version=base).raise_for_status()
            assert party.send_counts(round_id, {3: 256}).status_code == 200
        found = self.operator.close(round_id)
        assert found["state"] == "published", found
        assert self.operator.get("status")["model_version"] == found["model_version"]
        return found

    def model(self, version: str) -> dict[str, Any]:
        return next(entry for entry in self.operator.get("models")["models"] if entry["version"] == version)

    def check(self, found: dict[str, Any], line: Line, parent: str, reports: int) -> str:
        version = str(found["model_version"])
        np.testing.assert_allclose(weights_of(self.http, version)["encoder.0.W"], line.weights, rtol=2e-5, atol=2e-6)
        row = self.model(version)
        teacher = weights_of(self.http, row["teacher"])["encoder.0.W"] if row["teacher"] is not None else BASE
        np.testing.assert_allclose(teacher, line.teacher, rtol=2e-5, atol=2e-6)
        assert (row["parent"], row["round_id"]) == (parent, found["id"]) and row["figures"]["reports"] == reports
        return version


@pytest.mark.parametrize("keep", [None, 2])
def test_the_line_that_was_gone_back_to_goes_on(tmp_path: Path, keep: int | None) -> None:
    with serving(tmp_path, keep_models=keep) as http:
        scene, line = Scene(http), Line()
        one = scene.check(scene.round((0.5, 1), (0.1, 3)), line.step(0.2), "base-1", 2)
        kept = copy(line)
        two = scene.check(scene.round((-0.4, 1)), line.step(-0.4), one, 1)
        scene.operator.post(f"models/{one}/publish", params={"note": "two was worse"})
        assert scene.operator.get("status")["model_version"] == one
        three = scene.check(scene.round((0.3, 2)), kept.step(0.3), one, 1)
        assert scene.model(three)["teacher"] != scene.model(two)["teacher"]
        four = scene.check(scene.round((0.1, 1)), kept.step(0.1), three, 1)
        history = [entry["version"] for entry in scene.operator.get("models")["history"]]
        assert history == [four, three, one, two, one, "base-1"]
        if keep is not None:
            back = http.post(f"/v1/operator/models/{two}/publish", headers=HEADERS)
            assert refusal(back) == refusal(http.get(f"/v1/models/{two}")) == (410, "model_removed")
            assert scene.operator.get("status")["model_version"] == four


def test_a_round_that_was_open_on_what_was_taken_back_is_not_published(tmp_path: Path) -> None:
    """Its model stays in the registry with its parent; the marginals, whose base is current still, are published."""
    with serving(tmp_path) as http:
        scene, line = Scene(http), Line()
        one = scene.check(scene.round((0.2, 1)), line.step(0.2), "base-1", 1)
        round_id = str(scene.operator.post("rounds", json={"settings": PLAN})["id"])
        party = Party(http).enrol()
        assert party.send_delta(round_id, value=0.1, model_version=one).status_code == 200
        assert party.send_counts(round_id, {3: 256}).status_code == 200
        scene.operator.post("models/base-1/publish")
        found = scene.operator.close(round_id)
        assert "kept unpublished" in found["note"] and scene.operator.get("status")["model_version"] == "base-1"
        assert scene.model(found["model_version"])["parent"] == one
        assert scene.operator.get("status")["marginals_version"] == found["marginals_version"]
        scene.check(scene.round((0.3, 1)), Line().step(0.3), "base-1", 1)


START = initial().weights


def moved(step: float, seed: int = 1) -> bytes:
    """The tensors of the server's first model, all of them moved a little, so that a difference is worth it."""
    rng = np.random.default_rng(seed)
    return dump_weights({name: values + np.float32(step * rng.random()) for name, values in START.items()})


def get(http: Any, path: str, **headers: str) -> Any:
    return http.get(f"/v1/models/{path}", headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_a_difference_leads_to_the_very_bytes(http: Any, operator: Operator) -> None:
    operator.post("models/v2", content=dump_weights(START | {"joiner.output.bias": np.ones(5, np.float32)}))
    whole, found = get(http, "v2"), get(http, "v2/from/base-1")
    assert found.status_code == 200 and len(found.content) < len(whole.content)
    assert difference.apply(START, found.content, len(whole.content)) == whole.content
    etag = found.headers["etag"]
    assert etag != whole.headers["etag"] and get(http, "v2/from/base-1", If_None_Match=etag).status_code == 304


@pytest.mark.parametrize("path", ["v2", "v2/from/base-1"])
def test_ranges(http: Any, operator: Operator, path: str) -> None:
    operator.post("models/v2", content=moved(1e-3))
    whole = get(http, path)
    size, etag = len(whole.content), whole.headers["etag"]
    rest = get(http, path, Range="bytes=50-", If_Range=etag)
    assert (rest.status_code, rest.headers["content-range"]) == (206, f"bytes 50-{size - 1}/{size}")
    assert rest.content == whole.content[50:] and rest.headers["etag"] == etag
    for other in ('"other"', f"W/{etag}"):
        anew = get(http, path, Range="bytes=50-", If_Range=other)
        assert (anew.status_code, anew.content) == (200, whole.content)
    past = get(http, path, Range=f"bytes={size}-")
    assert (past.status_code, past.headers["content-range"]) == (416, f"bytes */{size}")


def test_what_is_not_offered(http: Any, operator: Operator) -> None:
    for number in range(2, RECENT + 4):
        operator.post(f"models/v{number}", content=moved(1e-3, number))
    operator.post("models/hidden", content=moved(1e-3), params={"published": False})
    newest = f"v{RECENT + 3}"
    old = (404, "no_difference")
    for path in (f"{newest}/from/v{RECENT + 2}", f"{newest}/from/base-1"):  # what every device begins with
        assert get(http, path).status_code == 200
    for path, expected in (
        (f"{newest}/from/v3", old),  # long ago
        (f"{newest}/from/hidden", old),  # on no device
        (f"{newest}/from/{newest}", old),
        (f"v{RECENT + 2}/from/v{RECENT + 1}", old),  # not current
        (f"{newest}/from/none", (404, "unknown_model")),
        ("none/from/base-1", (404, "unknown_model")),
    ):
        assert refusal(get(http, path)) == expected, path


def test_what_would_be_hardly_shorter_is_not_offered(http: Any, operator: Operator, monkeypatch) -> None:
    monkeypatch.setattr("server.registry.differences.WORTH", 0.3)  # of so small a file most is its header
    operator.post("models/v2", content=moved(1e-3))
    for _ in range(2):
        assert get(http, "v2/from/base-1").json()["code"] == "no_difference"


def test_a_rollout_and_its_way_back_are_offered(http: Any, operator: Operator) -> None:
    operator.post("models/v2", content=moved(1e-3), params={"published": False})
    assert get(http, "v2/from/base-1").status_code == 404
    operator.post("rollout", json={"version": "v2"})
    assert get(http, "v2/from/base-1").status_code == 200 and get(http, "base-1/from/v2").status_code == 200
    operator.post("rollout/roll-back")
    assert get(http, "v2/from/base-1").status_code == 404
    back = get(http, "base-1/from/v2")
    content = get(http, "base-1").content
    assert difference.apply(parse_weights(get(http, "v2").content), back.content, len(content)) == content


def test_what_leads_nowhere_any_more_is_removed(http: Any, operator: Operator, tmp_path: Path) -> None:
    for number in (2, 3):
        operator.post(f"models/v{number}", content=moved(1e-3, number))
        assert get(http, f"v{number}/from/base-1").status_code == 200
    newest = operator.get("models")["models"][0]["sha256"]
    kept = [path.name for path in (tmp_path / "blobs" / "differences").iterdir()]
    assert len(kept) == 1 and kept[0].endswith(newest)


def test_many_ask_at_once(http: Any, operator: Operator) -> None:
    operator.post("models/v2", content=moved(1e-3))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: get(http, "v2/from/base-1").content, range(16)))
    assert len(set(found)) == 1
