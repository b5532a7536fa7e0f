"""A rollout on a real server: who gets what, and what becomes of it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import insert

from device_sdk.wire.rollout import arm_of, place
from server.aggregation.weights_file import dump_weights
from server.operators.client import OperatorClient
from server.plans.round import RolloutSettings, RoundSettings
from server.privacy.charges import charge_for
from server.privacy.composition import Spent, compose
from server.registry.initial import register_initial
from server.registry.models import add_model, current_version, history
from server.registry.models import store as store_weights
from server.registry.retention import superfluous
from server.rounds.evaluation import Evaluation
from server.rounds.rollout import conduct
from server.rounds.rollout.evidence import Watched
from server.settings import database_url
from server.signing.repository import published_files
from server.storage.blobs import FolderBlobs
from server.storage.database import Database
from server.storage.schema import devices
from tests.server.conftest import InProcess
from tests.server.parties import HEADERS, OPERATOR, Operator, Party, initial, refusal, serving, until, weights_of
from tests.server.rounds.test_sampling import DELTA, NOISED

QUICK = {"share": 0.5, "minimum": 4, "patience": 1000.0, "seconds": 1500.0, "doubt": 0.2}


class Scene:
    """A server, its operator, and devices of which at least ``minimum`` are in either arm of version v2's rollout."""

    def __init__(self, http: Any, clock: list[float]) -> None:
        self.http, self.operator, self.clock = http, Operator(http), clock
        self.arms: dict[str, list[Party]] = {"rollout": [], "control": [], "rest": []}

    def prepare(self) -> None:
        """Version v2, and devices for its rollout."""
        self.push("v2")
        while min(len(self.arms["rollout"]), len(self.arms["control"])) < QUICK["minimum"]:
            device = Party(self.http).enrol()
            self.arms[arm_of(device.id, "v2", QUICK["share"])].append(device)

    def push(self, version: str, seed: int = 1) -> None:
        content = dump_weights(initial(seed=seed).weights)
        self.operator.post(f"models/{version}", content=content, params={"published": False})

    def begin(self, version: str = "v2", **changes: Any) -> dict[str, Any]:
        return self.operator.post("rollout", json={"version": version, "settings": QUICK | changes})

    def offered(self, arm: str, **changes: Any) -> set[str]:
        return {device.check_in(**changes).json()["model_version"] for device in self.arms[arm]}

    def rollout(self) -> dict[str, Any]:
        return dict(self.operator.get("rollout")["rollouts"][0])

    def later(self, seconds: float = 900.0) -> None:
        self.clock[0] += seconds

    def visits(self, times: int, seconds: float = 900.0) -> None:
        """Devices of both arms come, with what they should have, and time passes."""
        for _ in range(times):
            self.offered("rollout", model_version="v2")
            self.offered("control")
            self.later(seconds)

    def ends(self, state: str) -> dict[str, Any]:
        """Waits until the rollout is over in that way."""
        until(lambda: self.rollout()["state"] == state)
        return self.rollout()


@contextmanager
def staged(folder: Path, **changes: Any) -> Iterator[Scene]:
    clock = [time.time()]
    with serving(folder, clock=lambda: clock[0], window_seconds=1e9, **changes) as http:
        yield Scene(http, clock)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with staged(tmp_path) as found:
        found.prepare()
        yield found


def test_a_good_model_goes_to_its_share_and_then_to_all(scene: Scene) -> None:
    assert scene.begin()["arms"]["rollout"] == {"seen": 0, "watched": 0, "failed": 0}
    for _ in range(2):
        assert scene.offered("rollout") == {"v2"} and scene.offered("control") == {"base-1"}
    scene.later()
    assert scene.rollout()["state"] == "running"
    scene.visits(2)
    found = scene.ends("promoted")
    assert scene.offered("control") == scene.offered("rollout") == {"v2"}
    assert found["note"].startswith(f"0 of {len(scene.arms['rollout'])} devices failed with it, 0 of ")
    assert found["arms"]["rollout"]["seen"] == len(scene.arms["rollout"])
    assert [entry["version"] for entry in scene.operator.get("models")["history"]] == ["v2", "base-1"]


@pytest.mark.parametrize("silent", [False, True])
def test_a_model_that_devices_cannot_use_is_taken_back(scene: Scene, silent: bool) -> None:
    """They come back and say that they have the old one, or installed it and are silent from then on."""
    scene.begin(seconds=1e6)
    for visit in range(3):
        if not silent or visit == 0:
            assert scene.offered("rollout", model_version="v2" if silent else "base-1") == {"v2"}
        assert scene.offered("control") == {"base-1"}
        scene.later(450.0)
    found = scene.ends("rolled_back")
    assert scene.offered("rollout") == scene.offered("control") == {"base-1"}
    count = len(scene.arms["rollout"])
    assert f"{count} of {count} devices failed with it, 0 of " in found["note"]
    assert 0 < found["figures"]["p"] <= found["figures"]["allowed"] < 0.2
    assert [entry["version"] for entry in scene.operator.get("models")["history"]] == ["base-1"]


def test_where_both_arms_are_silent_nobody_is_to_blame(scene: Scene) -> None:
    scene.begin(seconds=1e6)
    scene.visits(1, 2000.0)
    until(lambda: scene.rollout()["looks"] > 0)
    found = scene.rollout()
    assert found["state"] == "running" and found["figures"]["p"] == pytest.approx(1.0)


def test_operators_promote_and_roll_back(scene: Scene) -> None:
    scene.begin(seconds=1e6, patience=1e6)
    assert scene.operator.get("rollout")["running"] == "v2"
    assert scene.operator.post("rollout/roll-back", params={"note": "not now"})["note"] == "not now"
    assert scene.offered("rollout") == {"base-1"}
    scene.begin(seconds=1e6, patience=1e6)
    assert scene.operator.post("rollout/promote")["state"] == "promoted"
    assert scene.offered("rest") | scene.offered("control") == {"v2"}
    done = [(action["action"], action["subject"]) for action in scene.operator.get("actions")["actions"]]
    assert done[:4] == [(f"rollout.{action}", "v2") for action in ("promote", "begin", "roll-back", "begin")]


def test_what_cannot_begin_or_end(scene: Scene) -> None:
    def refused(path: str = "rollout", **content: Any) -> tuple[int, str]:
        return refusal(scene.http.post(f"/v1/operator/{path}", json=content, headers=HEADERS))

    assert refused("rollout/promote") == refused("rollout/roll-back") == (409, "no_rollout")
    assert refused(version="base-1") == (409, "is_current") and refused(version="v9") == (404, "unknown_model")
    scene.begin(seconds=1e6, patience=1e6)
    assert refused(version="v2") == refused(version="base-1") == (409, "rollout_running")


@pytest.mark.parametrize(("published", "state"), [("v2", "promoted"), ("v3", "rolled_back")])
def test_what_an_operator_publishes_meanwhile_ends_it(scene: Scene, published: str, state: str) -> None:
    scene.push("v3", seed=3)
    scene.begin(seconds=1e6, patience=1e6)
    scene.operator.post(f"models/{published}/publish")
    assert scene.offered("rollout") == scene.offered("control") == {published}
    assert scene.ends(state)["note"] == f"model {published} was published"


def test_held_out_speech_has_the_last_word(tmp_path: Path) -> None:
    verdict = [Evaluation(False, {"word_error": 0.5}, "word error 20.0 -> 50.0 %")]
    with staged(tmp_path, evaluate=lambda _candidate, _base: verdict[0]) as scene:
        scene.prepare()
        scene.begin(automatic=False)
        assert refusal(scene.http.post("/v1/operator/rollout/promote", headers=HEADERS)) == (409, "worse")
        assert scene.operator.post("rollout/promote", params={"force": True})["state"] == "promoted"
        scene.operator.post("models/base-1/publish")
        scene.begin()
        scene.visits(3)
        found = scene.ends("rolled_back")
        assert found["note"].endswith("word error 20.0 -> 50.0 %") and found["figures"]["word_error"] == 0.5


def test_a_device_is_where_it_is() -> None:
    """Uniform, and drawn anew for every version; what a protocol says never moves."""
    assert place("a-device", "v2") == pytest.approx(0.8567, abs=1e-4)
    places = np.array([[place(f"{number:032x}", version) for version in ("a", "b")] for number in range(4000)])
    assert abs(places.mean(axis=0) - 0.5).max() < 0.02 and abs(np.corrcoef(places.T)[0, 1]) < 0.05
    arms = [arm_of(f"{number:032x}", "a", 0.1) for number in range(4000)]
    assert 320 < arms.count("rollout") < 480 and 320 < arms.count("control") < 480


def test_what_a_rollout_is_not_told_is_the_servers_own(tmp_path: Path) -> None:
    own = RolloutSettings(share=0.3, patience=7 * 86_400.0, minimum=9)
    with staged(tmp_path, rollout=own) as scene:
        client = OperatorClient("http://testserver", OPERATOR, transport=InProcess(scene.http))
        client.push_model("v2", dump_weights(initial(seed=2).weights), published=False)
        begun = client.begin_rollout("v2", RolloutSettings(minimum=5, automatic=False))
        assert begun.settings == {**own.model_dump(mode="json"), "minimum": 5, "automatic": False}


def test_a_series_of_rounds_waits_for_its_rollout(tmp_path: Path) -> None:
    """Promoted, the next round begins from the model; taken back, the series ends and what follows begins from before:
    weights, parents, optimizer state and figures are those of the line that was kept."""
    with staged(tmp_path, rollout=RolloutSettings(share=0.5, seconds=1e6, patience=1e6)) as scene:
        operator = scene.operator
        adam = {"kind": "adam", "learning_rate": 0.5}
        plan = {
            "marginals": None,
            "deltas": {},
            "weighting": "uniform",
            "optimizer": adam,
            "rounds": 9,
            "no_privacy": True,
        }
        round_id = str(operator.post("rounds", json={"settings": plan})["id"])

        def closed(value: float, base: str) -> dict[str, Any]:
            sent = Party(scene.http).enrol().send_delta(round_id, value=value, model_version=base)
            assert sent.status_code == 200, sent.text
            return operator.close(round_id)

        def following() -> str | None:
            found = [each for each in operator.get("status")["rounds"] if each["state"] == "open"]
            return str(found[0]["id"]) if found else None

        def weights(version: str) -> np.ndarray:
            return weights_of(scene.http, version)["encoder.0.W"]

        before = initial().weights["encoder.0.W"]
        first = closed(0.02, "base-1")
        one = first["model_version"]
        assert first["state"] == "published" and "first" in first["note"]
        assert operator.get("status")["model_version"] == "base-1" and following() is None
        operator.post("rollout/promote")
        assert operator.get("status")["model_version"] == one

        round_id = str(following())
        two = closed(-0.04, one)["model_version"]
        operator.post("rollout/roll-back")
        assert operator.get("status")["model_version"] == one and following() is None

        round_id = str(operator.post("rounds", json={"settings": plan})["id"])
        assert operator.get(f"rounds/{round_id}")["base_model"] == one
        three = closed(0.01, one)["model_version"]
        operator.post("rollout/promote")

        # Adam by hand, of the kept line only.
        first_change = -0.02 / (0.02 + 1e-3)
        mean, square = 0.9 * 0.1 * -0.02 + 0.1 * -0.01, 0.99 * 0.01 * 0.02**2 + 0.01 * 0.01**2
        third_change = mean / (1 - 0.9**2) / (np.sqrt(square / (1 - 0.99**2)) + 1e-3)
        np.testing.assert_allclose(weights(one), before - 0.5 * first_change, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(weights(three), weights(one) - 0.5 * third_change, rtol=1e-5, atol=1e-6)
        known = {entry["version"]: entry for entry in operator.get("models")["models"]}
        assert [known[version]["parent"] for version in (one, two, three)] == ["base-1", one, one]
        size = float(np.sqrt(48 + 5))  # all of W and of the bias move alike
        assert known[three]["figures"]["update_norm"] == pytest.approx(0.5 * size * abs(float(third_change)), rel=1e-4)
        assert known[three]["figures"]["reports"] == 1.0
        assert [entry["version"] for entry in operator.get("models")["history"]] == [three, one, "base-1"]
        states = [(entry["version"], entry["state"]) for entry in operator.get("rollout")["rollouts"]]
        assert states == [(three, "promoted"), (two, "rolled_back"), (one, "promoted")]


@pytest.mark.parametrize(("times", "state"), [(2.5, "open"), (1.5, "planned")])
def test_a_promoted_model_opens_the_next_round_within_the_caps(tmp_path: Path, times: float, state: str) -> None:
    """An amplified series, whose rounds charge every device when they open."""
    rounds = RoundSettings.model_validate(NOISED)
    cap = sum(compose(Spent({charge_for("deltas", rounds): round(times + half)}), DELTA)[0] for half in (-0.5, 0.5)) / 2
    rollout = RolloutSettings(share=0.5, seconds=1e6, patience=1e6)
    with staged(tmp_path, rollout=rollout, deltas_cap=cap, tick_seconds=60.0) as scene:
        Party(scene.http).enrol()
        found = scene.operator.close(scene.operator.open(**NOISED | {"rounds": 3}))
        assert scene.operator.get("rollout")["running"] == found["model_version"]
        scene.operator.post("rollout/promote")
        following = [row for row in scene.operator.get("rounds")["rounds"] if row["number"] == found["number"] + 1]
        assert [row["state"] for row in following] == [state]
        assert following[0]["base_model"] == (found["model_version"] if state == "open" else None)
        assert scene.operator.get("privacy")["streams"]["deltas"]["epsilon"] <= cap


def test_devices_that_enrol_during_a_rollout_do_not_decide_it(scene: Scene) -> None:
    """They get what their arm has, and fail as they like: who was there before is watched."""
    scene.begin()
    scene.later(1.0)
    made_up = (Party(scene.http).enrol() for _ in range(1000))
    strangers = list(islice((each for each in made_up if arm_of(each.id, "v2", 0.5) == "rollout"), 16))
    assert {device.check_in().json()["model_version"] for device in strangers} == {"v2"}
    scene.offered("rollout")
    scene.offered("control")
    for _ in range(2):
        scene.later(550.0)
        scene.offered("rollout", model_version="v2")
        scene.offered("control")
        for device in strangers:
            device.check_in()
    counted = scene.rollout()["arms"]["rollout"]
    assert counted["seen"] == counted["watched"] == len(scene.arms["rollout"]) and counted["failed"] == 0
    scene.later(550.0)
    scene.ends("promoted")
    assert scene.operator.get("status")["model_version"] == "v2"


NOW = 1_800_000_000.0
SETTINGS = RolloutSettings(share=0.3, patience=100.0, seconds=500.0, minimum=2)
IDS = [f"{number:032x}" for number in range(60)]


@pytest.fixture
def database(place: str, tmp_path: Path) -> Iterator[Database]:
    found, blobs = Database(database_url(place)), FolderBlobs(tmp_path / "blobs")
    register_initial(found, blobs, initial(), NOW)
    with found.write() as connection:
        for number, version in enumerate(("v2", "v3", "v4")):
            stored = store_weights(blobs, initial(seed=number + 2).weights, {"version": version})
            add_model(connection, version, stored, now=NOW + number, parent="base-1")
        for number, device in enumerate(IDS):
            row = {"id": device, "public_key": number.to_bytes(32, "big"), "enrolled_at": NOW}
            connection.execute(insert(devices).values(row))
    yield found
    found.close()


def test_devices_are_counted_as_they_come_and_as_they_stay_away(database: Database) -> None:
    arms = {device: arm_of(device, "v2", 0.3) for device in IDS}
    rollout, control = ([device for device in IDS if arms[device] == arm] for arm in ("rollout", "control"))
    assert len(rollout) > 5 and len(control) > 5
    with database.write() as connection:
        assert conduct.model_for(connection, IDS[0], "base-1", NOW).version == "base-1"
        conduct.begin(connection, "v2", SETTINGS, NOW, "a trial")
        for device in IDS:
            found = conduct.model_for(connection, device, "base-1", NOW + 1)
            assert found.version == ("v2" if arms[device] == "rollout" else "base-1")
        row = conduct.require_running(connection)
        assert conduct.evidence(connection, row, NOW + 100) == conduct.Evidence(Watched(0, 0), Watched(0, 0))
        for device in (*rollout[2:], *control[1:]):
            conduct.model_for(connection, device, "v2" if device in rollout[3:] else "base-1", NOW + 90)
        for when, lost in ((NOW + 101, (3, 0)), (NOW + 150, (3, 1)), (NOW + 191, (len(rollout), len(control)))):
            found = conduct.evidence(connection, row, when)
            assert found == conduct.Evidence(Watched(len(rollout), lost[0]), Watched(len(control), lost[1]))
        shown = conduct.view(connection, row, NOW + 150)
        assert shown["arms"]["rollout"] == {"seen": len(rollout), "watched": len(rollout), "failed": 3}
        assert json.loads(json.dumps(shown))["settings"]["share"] == 0.3


def test_metadata_names_both_models_and_the_share(database: Database) -> None:
    def described(version: str) -> dict[str, object] | None:
        with database.read() as connection:
            found = {file.path: file.custom for file in published_files(connection)}
        return found.get(f"models/{version}.safetensors")

    assert described("v2") is None
    with database.write() as connection:
        conduct.begin(connection, "v2", SETTINGS, NOW, "")
    assert described("base-1") == {"current": True, "teacher": None}
    assert described("v2") == {"rollout": 300_000, "teacher": None}
    with database.write() as connection:
        conduct.end(connection, conduct.require_running(connection), "promoted", NOW + 5, "good", {})
        assert current_version(connection, "model") == "v2"
        assert [entry["version"] for entry in history(connection, "model")] == ["v2", "base-1"]
        notes = [entry["note"] for entry in history(connection, "rollout")]
        assert notes == ["promoted: good", "30 % of the devices; "]
    assert described("v2") == {"current": True, "teacher": None} and described("base-1") == {}


def test_weights_of_a_running_rollout_stay(database: Database) -> None:
    with database.write() as connection:
        conduct.begin(connection, "v2", SETTINGS, NOW, "")
        kept = conduct.find_model(connection, "v2").sha256
        dropped = conduct.find_model(connection, "v3").sha256
        assert superfluous(connection, 1) == [dropped]
        conduct.end(connection, conduct.require_running(connection), "rolled_back", NOW, "bad", {})
        assert superfluous(connection, 1) == sorted([kept, dropped])
