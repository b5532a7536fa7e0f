"""After a rollback, what comes next continues the line that was gone back to: weights, optimizer, teacher, figures."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.server.parties import HEADERS, Operator, Party, initial, refusal, serving, weights_of

BASE = initial().weights["encoder.0.W"]
DECAY, RATE, FIRST, SECOND, EPSILON = 0.75, 0.125, 0.9, 0.99, 1e-3
PLAN = {
    "marginals": {"epsilon": 1e8},
    "deltas": {"clip_norm": 100.0},
    "weighting": "utterances",
    "teacher": {"decay": DECAY, "interval": 2},
    "optimizer": {
        "kind": "adam", "learning_rate": RATE, "momentum": FIRST, "second_momentum": SECOND, "epsilon": EPSILON,
    },
}  # fmt: skip

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
            answer = party.send_delta(round_id, value=value, utterances=utterances, model_version=base)
            assert answer.status_code == 200, answer.text
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
        assert (row["parent"], row["round_id"]) == (parent, found["id"])
        assert row["figures"]["reports"] == reports
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
            for answer in (
                http.get(f"/v1/models/{two}"),
                http.post(f"/v1/operator/models/{two}/publish", headers=HEADERS),
            ):
                assert refusal(answer) == (410, "model_removed")
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
        assert "kept unpublished" in found["note"]
        assert scene.operator.get("status")["model_version"] == "base-1"
        assert scene.model(found["model_version"])["parent"] == one
        assert scene.operator.get("status")["marginals_version"] == found["marginals_version"]
        scene.check(scene.round((0.3, 1)), Line().step(0.3), "base-1", 1)
