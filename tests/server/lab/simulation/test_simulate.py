"""The whole of it, small: real devices, a real server process, HTTP in between."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from device_sdk.bundle import Bundle
from device_sdk.cli import main
from device_sdk.errors import CheckInError, ConfigurationError, StateError
from device_sdk.features import ChannelSettings
from device_sdk.feedback import Accepted, Cancelled, Corrected, Semantics, SlotLexicon
from device_sdk.hypothesis import Hypothesis, Result, Scores
from server.app import create_app
from server.commands.serve import read_tokens
from server.lab.simulation.fleet import Task, device_settings, round_settings, run_task, saw
from server.lab.simulation.outcomes import CONDITIONS, Condition, Outcome, Run, against_frozen
from server.lab.simulation.population import Participant, Population, Recording, Shape, gather
from server.lab.simulation.process import Operator, ServerProcess
from server.lab.simulation.run import epsilon
from server.lab.simulation.settings import FleetSettings, SimulationSettings
from server.settings import ServerSettings

SHAPE = Shape(rounds=2, devices=1, each=1, heldout=1, heldout_each=1)
LEXICON = SlotLexicon({"room": ("kitchen",)})
BY_NAME = {condition.name: condition for condition in CONDITIONS}


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Population:
    return gather("made", 1, SHAPE, {}, tmp_path_factory.mktemp("speech"))


def _kept(folder: Path) -> ServerSettings:
    tokens = read_tokens(folder / "server.tokens.json", None, None)
    return ServerSettings(str(folder / "server.db"), folder / "server.blobs", *tokens)


@pytest.fixture(scope="module")
def document(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What `idiolect simulate` writes: the JSON and the page."""
    folder = tmp_path_factory.mktemp("simulation")
    words = ["simulate", "--bundle", str(tiny_bundle.path), "--devices", "1", "--each", "1", "--rounds", "2"]
    words += ["--heldout", "1", "--heldout-each", "1", "--seed", "3"]
    words += ["--report", str(folder / "report.html"), "--output", str(folder / "figures.json")]
    words += ["--keep", str(folder / "server")]
    assert main(words) == 0
    with TestClient(create_app(_kept(folder / "server"))) as client:
        client.post("/dashboard/sign-in", data={"token": _kept(folder / "server").operator_token})
        page = client.get("/dashboard/rounds").text
        assert page.count('class="state published"') == 2
    assert main(words) == 1  # nothing is written over
    return json.loads((folder / "figures.json").read_text("utf-8")), (folder / "report.html").read_text("utf-8")


def test_the_json_has_the_form_that_others_read(document: tuple[dict[str, Any], str]) -> None:
    found = document[0]
    assert set(found["conditions"]) == {"frozen", "marginals", "learning", "both", "supervised"}
    for condition in found["conditions"].values():
        assert set(condition) == {"wer", "slot_error"}
        for figure in condition.values():
            assert set(figure) == {"all", "last", "heldout"}
            for part in figure.values():
                assert set(part) == {"mean", "std", "per_seed"} and len(part["per_seed"]) == 1
    assert found["rounds"] == 2 and found["seeds"] == 1
    assert set(found["epsilon"]) == {"marginals", "deltas"}
    for entry in found["epsilon"].values():
        assert {"epsilon", "adjacency", "sampling", "trust_model"} <= set(entry)
        assert len(entry["per_round"]) == 2
    first, both = found["epsilon"]["marginals"]["per_round"]
    assert first < both <= 2 * first * (1 + 1e-6)
    assert found["bytes"]["frozen"] == {"up": 0.0, "down": 0.0}
    assert found["bytes"]["both"]["up"] > found["bytes"]["marginals"]["up"] > 0
    voices = [set(found["voices"][name]) for name in ("base", "devices", "heldout")]
    assert all(voices) and not voices[1] & voices[2]


def test_the_page_is_whole_and_needs_nothing_else(document: tuple[dict[str, Any], str]) -> None:
    page = document[1]
    parser = HTMLParser()
    parser.feed(page)
    assert page.count("<svg") >= 7
    for name in ("Round by round", "Device by device", "What travels", "Privacy", "On the device", "Voices"):
        assert f"<h2>{name}</h2>" in page
    assert not any(outside in page for outside in ("http://", "https://", "src=", "<script", "@import", "<link"))


def test_a_round_changes_what_the_server_serves(tiny_bundle: Bundle, population: Population, tmp_path: Path) -> None:
    settings = SimulationSettings(bundle=str(tiny_bundle.path), shape=SHAPE)
    frozen, both = (
        run_task(Task(BY_NAME[name], 1, settings, population, str(tmp_path / name))) for name in ("frozen", "both")
    )
    assert [(o.voice, o.round, o.words, o.slots) for o in frozen.outcomes] == [
        (o.voice, o.round, o.words, o.slots) for o in both.outcomes
    ]
    assert not frozen.traffic and not frozen.epsilon
    # Weights travel up in every round, and down from the second on as what differs; word counts are small beside them.
    size = sum(weight.nbytes for weight in tiny_bundle.weights.values())
    assert [entry.round for entry in both.traffic] == [0, 1]
    assert all(size < entry.up < 1.3 * size for entry in both.traffic)
    assert 10 * both.traffic[0].down < both.traffic[1].down < 1.1 * size, (size, both.traffic)
    assert all(outcome.learn_seconds > 0 for outcome in both.outcomes if not outcome.held_out)
    assert both.memory_bytes > 10 * size


def test_the_server_process_comes_up_again_over_its_state(tiny_bundle: Bundle, tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "server", str(tiny_bundle.path))
    with server, server.operator() as operator:
        round_id = operator.open_round(round_settings(FleetSettings(), BY_NAME["marginals"], 2))
        assert [entry["id"] for entry in operator.status()["rounds"]] == [round_id]
    with server:
        with server.operator() as operator:
            assert operator.close_round(round_id)["state"] == "abandoned"  # nobody reported
        with Operator(server.url, "wrong token") as stranger, pytest.raises(CheckInError, match="401"):
            stranger.status()
    server.stop()  # a second time does nothing


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"did not come up.*nowhere"):
        ServerProcess(tmp_path / "server", str(tmp_path / "nowhere")).start()


def recording(text: str | None = "light in the kitchen", slots: dict[str, str] | None = None) -> Recording:
    return Recording("a", text, slots, True, "none", 1.0)


def heard(text: str) -> Result:
    return Result("u", (Hypothesis((1,), text, (), Scores(-1.0), -1.0),), 1.0)


@pytest.mark.parametrize(
    ("said", "result", "condition", "expected"),
    [
        (recording(slots={"room": "kitchen"}), heard("x"), "both", Semantics({"room": "kitchen"}, LEXICON)),
        (recording(), heard("light in the kitchen"), "both", Accepted()),
        (recording(), heard("light in the chicken"), "learning", Cancelled()),
        (recording(None), heard("x"), "both", None),
        (recording(slots={"room": "kitchen"}), heard("x"), "supervised", Corrected("light in the kitchen")),
        (recording(None, {"room": "kitchen"}), heard("x"), "supervised", None),
    ],
)
def test_feedback_is_what_an_app_could_see(said: Recording, result: Result, condition: str, expected: object) -> None:
    assert saw(said, result, LEXICON, BY_NAME[condition]) == expected


def test_slots_alone_decide_the_feedback_of_labelled_data() -> None:
    """Another transcript changes nothing that a device is told, except in the yardstick."""
    first, second = (recording(text, {"room": "kitchen"}) for text in ("one thing", "quite another"))
    for condition in CONDITIONS:
        same = saw(first, heard("x"), LEXICON, condition) == saw(second, heard("x"), LEXICON, condition)
        assert same is not condition.supervised


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_allows_what_it_says(condition: Condition) -> None:
    settings = device_settings(FleetSettings(), condition)
    assert settings.use_marginals == settings.share_marginals == condition.marginals
    assert settings.learn == settings.share_deltas == condition.learning
    behind = device_settings(FleetSettings(channel=ChannelSettings()), condition)
    assert settings.channel is None and (behind.channel is not None) == condition.learning
    plans = round_settings(FleetSettings(), condition, 5)
    assert (plans["marginals"] is not None) == condition.marginals
    assert (plans["deltas"] is not None) == condition.learning
    assert plans["goal"] == 5 and plans["minimum"] == 3
    rates = [round_settings(FleetSettings(), condition, devices)["optimizer"]["learning_rate"] for devices in (2, 20)]
    assert rates == [1.0, 4.0]
    faster = round_settings(replace(FleetSettings(), server_rate=3.0), condition, 5)
    assert faster["optimizer"] == {"kind": "sgd", "learning_rate": 3.0}


def outcome(voice: str, errors: int) -> Outcome:
    return Outcome(voice, 0, 0, 0, errors, 4, 1.0, 0.1)


def run(condition: str, outcomes: list[Outcome], spent: dict[str, dict[str, Any]] | None = None, seed: int = 1) -> Run:
    return Run(condition, seed, tuple(outcomes), (), spent or {}, 1, 1.0)


def test_conditions_are_paired_with_frozen() -> None:
    def found(
        frozen: list[Outcome], both: list[Outcome], part: str = "all", kind: str = "slot_error"
    ) -> dict[str, Any] | None:
        runs = [run("frozen", frozen), *(run(condition.name, both) for condition in CONDITIONS[1:])]
        difference: dict[str, Any] | None = against_frozen(runs, 2)["both"][kind][part]
        return difference

    generator = np.random.default_rng(1)
    frozen = [
        replace(outcome(f"v{number % 10}", int(generator.integers(1, 5))), round=number % 2) for number in range(60)
    ]
    both = [replace(entry, slot_errors=entry.slot_errors - 1) for entry in frozen]
    everything, last = found(frozen, both), found(frozen, both, "last")
    assert everything is not None and everything["groups"] == 10 and last is not None and last["groups"] == 5
    assert everything["absolute"]["mean"] == pytest.approx(-0.25)
    assert everything["absolute"]["low"] == pytest.approx(-0.25) and everything["absolute"]["excludes_zero"]
    assert found(frozen, both, "heldout") is None and found(frozen, both, kind="wer") is None
    flawless, alone = [outcome("a", 0), outcome("b", 0)], [outcome("a", 2), outcome("a", 1)]
    assert found(flawless, flawless) is None and found(alone, alone) is None


def test_the_largest_epsilon_of_any_seed_is_stated() -> None:
    spent = [{"deltas": {"epsilon": value, "adjacency": "user", "per_round": [value]}} for value in (3.0, float("inf"))]
    found = epsilon([run("both", [], spent[0]), run("both", [], spent[1], 2), run("learning", [], spent[1])])
    assert found == {"deltas": {"epsilon": "Infinity", "adjacency": "user", "per_round": ["Infinity"]}}
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "settings",
    [{"seeds": ()}, {"seeds": (1, 1)}, {"workers": 0}, {"shape": Shape(rounds=0)}, {"shape": Shape(devices=0)}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        SimulationSettings(**settings)


def test_a_participant_is_plain_data(population: Population) -> None:
    assert isinstance(population.devices[0], Participant) and len(population.devices[0].rounds) == 2
