"""The whole of it, small: real devices, a real server process, HTTP in between."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from device_sdk.bundle import Bundle
from device_sdk.cli import main
from device_sdk.errors import CheckInError, ConfigurationError, DataError, StateError
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result, Scores
from server.app import create_app
from server.commands.serve import read_tokens
from server.lab.corpora import Utterance
from server.lab.simulation.fleet import SimulationSettings, Task, device_settings, round_settings, run_task, saw
from server.lab.simulation.outcomes import CONDITIONS, Condition
from server.lab.simulation.population import Shape, gather
from server.lab.simulation.process import ServerProcess
from server.lab.simulation.run import finished, simulate, spoken
from server.operators.client import OperatorClient
from server.settings import ServerSettings
from tests.architecture.sources import ROOT
from tests.confirmed_rounds import VOICES
from tests.speech import packaged

SHAPE = Shape(rounds=2, devices=1, each=1, heldout=1, heldout_each=1)
LEXICON = SlotLexicon({"room": ("kitchen",)})
BY_NAME = {condition.name: condition for condition in CONDITIONS}


@pytest.fixture(scope="module")
def found(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON that `idiolect simulate` writes."""
    folder = tmp_path_factory.mktemp("simulation")
    server = folder / "server"
    words = ["simulate", "--bundle", str(tiny_bundle.path), "--devices", "1", "--each", "1", "--rounds", "2"]
    words += ["--heldout", "1", "--heldout-each", "1", "--seed", "3", "--keep", str(server)]
    words += ["--report", str(folder / "report.html"), "--output", str(folder / "figures.json")]
    assert main(words) == 0
    tokens = read_tokens(server / "server.tokens.json", None, None)
    kept = ServerSettings(str(server / "server.db"), server / "server.blobs", *tokens)
    with TestClient(create_app(kept)) as client:
        client.post("/dashboard/sign-in", data={"token": kept.operator_token})
        assert client.get("/dashboard/rounds").text.count('class="state published"') == 2
    assert main(words) == 1  # nothing is written over
    page = (folder / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 7 and "<h2>On the device</h2>" in page
    return json.loads((folder / "figures.json").read_text("utf-8"))


def test_the_json_has_the_form_that_others_read(found: dict[str, Any]) -> None:
    assert set(found["conditions"]) == set(BY_NAME)
    parts = {"all", "later", "last", "heldout"}
    for condition in found["conditions"].values():
        assert {kind: set(figure) for kind, figure in condition.items()} == {"wer": parts, "slot_error": parts}
        for part in (part for figure in condition.values() for part in figure.values()):
            assert set(part) == {"mean", "std", "per_seed"} and len(part["per_seed"]) == 1
    assert found["rounds"] == 2 and found["seeds"] == 1 and set(found["epsilon"]) == {"marginals", "deltas"}
    for entry in found["epsilon"].values():
        assert {"epsilon", "adjacency", "sampling", "trust_model"} <= set(entry) and len(entry["per_round"]) == 2
    first, both = found["epsilon"]["marginals"]["per_round"]
    assert first < both <= 2 * first * (1 + 1e-6) and found["bytes"]["frozen"] == {"up": 0.0, "down": 0.0}
    assert found["bytes"]["both"]["up"] > found["bytes"]["marginals"]["up"] > 0
    voices = [set(found["voices"][name]) for name in ("base", "devices", "heldout")]
    assert all(voices) and not voices[1] & voices[2]


def test_a_second_simulation_goes_on_from_the_runs_that_are_finished(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is finished is read as it was, only what is missing runs; what others
    say, or say otherwise, has files of its own."""
    settings = SimulationSettings(bundle=str(tiny_bundle.path), shape=SHAPE, work=str(tmp_path / "work"))
    runs = simulate(settings)[1]
    kept = sorted((tmp_path / "work").iterdir())
    assert [path.name.split("-")[0] for path in kept] == sorted(BY_NAME)
    kept[0].unlink()
    told: list[str] = []
    _, others = simulate(settings, lambda what, done, total: told.append(what))
    for before, after in zip(runs, others, strict=True):
        assert before.condition == after.condition and (before == after or before.condition == "both")
    assert told.count("devices") == 3, "an utterance in each round and one of the voice that is held out"
    assert sorted((tmp_path / "work").iterdir()) == kept
    people = gather("made", 1, SHAPE, {}, tmp_path / "speech")
    task = Task(BY_NAME["both"], 1, settings, people, tmp_path)
    assert finished(task, tiny_bundle, spoken(people)) == kept[0]
    for path in (tmp_path / "speech").glob("*.npy"):
        np.save(path, np.load(path) * np.float32(0.5))
    assert finished(task, tiny_bundle, spoken(people)) != kept[0]
    kept[1].write_text("{")
    with pytest.raises(DataError, match=f"{kept[1].name}.*delete it"):
        simulate(settings)


def test_a_round_changes_what_the_server_serves(tiny_bundle: Bundle, tmp_path: Path) -> None:
    settings = SimulationSettings(bundle=str(tiny_bundle.path), shape=SHAPE)
    population = gather("made", 1, SHAPE, {}, tmp_path / "speech")
    frozen, both = (
        run_task(Task(BY_NAME[name], 1, settings, population, tmp_path / name)) for name in ("frozen", "both")
    )
    heard, again = ([(o.voice, o.round, o.words, o.slots) for o in run.outcomes] for run in (frozen, both))
    assert heard == again and not frozen.traffic and not frozen.epsilon
    # Weights travel up in every round, and down from the second on as what differs; word counts are small beside them.
    size = sum(weight.nbytes for weight in tiny_bundle.weights.values())
    assert [entry.round for entry in both.traffic] == [0, 1]
    assert all(size < entry.up < 1.3 * size for entry in both.traffic)
    assert 10 * both.traffic[0].down < both.traffic[1].down < 1.1 * size, (size, both.traffic)
    assert all(outcome.learn_seconds > 0 for outcome in both.outcomes if not outcome.held_out)
    assert both.memory_bytes > 10 * size


def test_the_server_comes_up_again_over_its_own_state_or_says_why_not(tiny_bundle, tmp_path, monkeypatch) -> None:
    for variable, name in (("IDIOLECT_DATABASE", "other.db"), ("IDIOLECT_BLOBS", "other.blobs")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    server = ServerProcess(tmp_path / "server", str(tiny_bundle.path))
    with server:
        round_id = server.operator.create_round(round_settings(BY_NAME["marginals"], 2)).id
        assert [entry.id for entry in server.operator.status().rounds] == [round_id]
    with server:
        assert server.operator.close_round(round_id).state == "abandoned"  # nobody reported
        with OperatorClient(server.url, "wrong token") as stranger, pytest.raises(CheckInError, match="401"):
            stranger.status()
    assert server.stop() is None, "a second time does nothing"
    assert list((tmp_path / "server" / "server.blobs").rglob("*.safetensors"))
    assert not (tmp_path / "other.db").exists() and not (tmp_path / "other.blobs").exists()
    with pytest.raises(StateError, match=r"did not come up.*nowhere"):
        ServerProcess(tmp_path / "none", str(tmp_path / "nowhere")).start()


def recording(text: str | None = "light in the kitchen", slots: dict[str, str] | None = None) -> Utterance:
    return Utterance("a", "a", text, slots, True, lambda: np.zeros(1, np.float32))


def heard(text: str) -> Result:
    return Result("u", (Hypothesis((1,), text, (), Scores(-1.0), -1.0),), 1.0)


@pytest.mark.parametrize(
    ("said", "result", "condition", "expected"),
    [
        (recording(slots={"room": "kitchen"}), heard("x"), "both", Semantics({"room": "kitchen"}, LEXICON)),
        (recording("else", {"room": "kitchen"}), heard("x"), "both", Semantics({"room": "kitchen"}, LEXICON)),
        (recording(), heard("light in the kitchen"), "both", Accepted()),
        (recording(), heard("light in the chicken"), "learning", Cancelled()),
        (recording(None), heard("x"), "both", None),
        (recording(slots={"room": "kitchen"}), heard("x"), "supervised", Corrected("light in the kitchen")),
        (recording(None, {"room": "kitchen"}), heard("x"), "supervised", None),
    ],
)
def test_feedback_is_what_an_app_could_see(said: Utterance, result: Result, condition: str, expected: object) -> None:
    """Slots alone decide that of labelled data, whatever was said, except in the yardstick."""
    assert saw(said, result, LEXICON, BY_NAME[condition], 1) == expected


def test_some_of_what_was_heard_wrongly_is_corrected_always_the_same() -> None:
    said = [replace(recording(), id=f"{number}") for number in range(400)]
    first, again, other = (
        [saw(each, heard("x"), LEXICON, BY_NAME["both"], seed) for each in said] for seed in (2, 2, 3)
    )
    assert first == again != other and 0.15 < sum(each != Cancelled() for each in first) / 400 < 0.25
    assert set(map(type, first)) == {Corrected, Cancelled}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_allows_what_it_says(condition: Condition) -> None:
    settings = device_settings(condition, packaged().architecture)
    assert settings.use_marginals == settings.share_marginals == condition.marginals
    assert settings.learn == settings.share_deltas == condition.learning
    assert device_settings(condition, packaged().architecture, "adapters").learning.subset == "adapters"
    if condition.reports:
        plans = round_settings(condition, 5)
        assert (plans.marginals is not None) == condition.marginals and (plans.deltas is not None) == condition.learning
        assert (plans.goal, plans.minimum) == (5, 3)
        assert [round_settings(condition, devices).optimizer.learning_rate for devices in (2, 20)] == [1.0, 4.0]


@pytest.mark.parametrize(
    "settings",
    [
        {"seeds": ()},
        {"seeds": (1, 1)},
        {"workers": 0},
        {"shape": Shape(rounds=0)},
        {"shape": Shape(devices=0)},
        {"subset": "x"},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        SimulationSettings(**settings)


@pytest.mark.slow
def test_32_confirmed_rounds_are_never_rolled_back_and_cost_no_other_command() -> None:
    """A new name, corrected until it is heard, costs neither what else was learned nor what was known."""
    packaged()
    environment = {name: value for name, value in os.environ.items() if name != "IDIOLECT_COMPILED"}
    command = [sys.executable, "-m", "tests.confirmed_rounds", "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lives) == VOICES
