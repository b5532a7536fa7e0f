"""A long series of rounds keeps a bounded number of weights; what anything still needs stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from device_sdk.errors import ConfigurationError
from server.registry.models import list_models
from tests.server.parties import HEADERS, Operator, Party, refusal, serving, settings


@pytest.fixture
def http(tmp_path: Path) -> Iterator[Any]:
    with serving(tmp_path, keep_models=2) as client:
        yield client


def test_old_weights_go_and_what_is_needed_stays(http: Any, operator: Operator, device: Party) -> None:
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


def test_at_least_two_are_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keep_models: found 1"):
        settings(tmp_path, keep_models=1)
