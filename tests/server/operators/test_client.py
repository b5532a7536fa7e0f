"""The typed client against the real server: everything it can ask, and that nothing is lost on the way."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from device_sdk.checkin.connection import Refused
from device_sdk.errors import CheckInError
from device_sdk.wire.messages import DeltaPlan, MarginalPlan
from server.aggregation.weights_file import dump_weights
from server.commands import accounts, openapi
from server.operators.client import OperatorClient
from server.plans.round import RolloutSettings, RoundSettings, RoundState
from server.web.openapi import document
from tests.server.conftest import InProcess, Run
from tests.server.parties import HEADERS, NO_NOISE, OPERATOR, Party, initial

URL = "http://testserver"


@pytest.fixture
def client(http: Any) -> OperatorClient:
    return OperatorClient(URL, OPERATOR, transport=InProcess(http))


def test_a_round_from_its_plan_to_what_it_released(http: Any, client: OperatorClient, device: Party) -> None:
    wanted = RoundSettings(marginals=MarginalPlan(epsilon=NO_NOISE), deltas=DeltaPlan(), smoothing=1.0, no_privacy=True)
    planned = client.create_round(wanted, opened=False)
    assert (planned.state, planned.opened_at) == (RoundState.PLANNED, None)
    assert RoundSettings.model_validate(planned.settings) == wanted
    assert client.open_round(planned.id).state is RoundState.OPEN
    assert [entry.id for entry in client.status().rounds] == [planned.id]
    device.send_counts(planned.id, {5: 256})
    device.send_delta(planned.id)
    closed = client.close_round(planned.id)
    assert (closed.state, closed.reports) == (RoundState.PUBLISHED, {"marginals": 1, "deltas": 1, "words": 0})
    assert closed == client.round(planned.id) == client.rounds()[0] and closed.releases["marginals"].reports == 1
    assert [move.target for move in closed.transitions][-1] is RoundState.PUBLISHED
    found = client.models()
    assert found.current == closed.model_version == client.status().model_version
    assert (found.models[0].parent, found.history[0].version) == ("base-1", found.current)
    words = client.words(closed.marginals_version, top=1)
    assert (words.top[0].word, words.top[0].released_count) == ("word5", 1.0)
    spent = client.privacy()
    assert spent.streams["deltas"].epsilon == spent.caps["deltas"] == float("inf")
    assert {line.device_id for line in spent.devices} == {device.id}
    assert client.abandon_round(client.create_round(wanted).id).state is RoundState.ABANDONED


def test_a_rollout_may_be_begun_with_settings_of_its_own(client: OperatorClient) -> None:
    pushed = client.push_model("v2", dump_weights(initial(seed=2).weights), note="trial", published=False)
    assert (pushed.version, pushed.parent, client.models().current) == ("v2", "base-1", "base-1")
    begun = client.begin_rollout("v2", RolloutSettings(share=0.25))
    assert (begun.state, begun.settings["share"], client.rollouts().running) == ("running", 0.25, "v2")
    client.roll_back_rollout(note="not now")
    assert client.begin_rollout("v2").settings["share"] == RolloutSettings().share


def test_names_cannot_lead_elsewhere(http: Any, client: OperatorClient) -> None:
    for name in ("../operators", "a/b", "x?y=1", "%2e%2e"):
        with pytest.raises(Refused) as raised:
            client.round(name)
        assert raised.value.code in ("unknown_round", "no_such_route")


def test_an_answer_of_another_kind_is_named() -> None:
    answers = httpx.MockTransport(lambda _request: httpx.Response(200, json={"name": "anna", "role": "owner"}))
    with pytest.raises(CheckInError, match=r"Me\.role: .*another version"):
        OperatorClient(URL, "token", transport=answers).me()


def test_nothing_the_server_says_is_lost(http: Any, client: OperatorClient, device: Party) -> None:
    """Every field of an answer is in the message, those that the message does not know too."""
    opened = client.create_round(RoundSettings(marginals=MarginalPlan(epsilon=NO_NOISE), no_privacy=True))
    device.send_counts(opened.id, {1: 256})
    client.close_round(opened.id)
    for path, found in (
        ("status", client.status()),
        ("models", client.models()),
        ("marginals", client.marginals()),
        ("privacy", client.privacy()),
        (f"rounds/{opened.id}", client.round(opened.id)),
    ):
        raw = http.get(f"/v1/operator/{path}", headers=HEADERS).text.replace('"Infinity"', "Infinity")
        assert found.model_dump(mode="python") == json.loads(raw), path


def test_commands(http: Any, client: OperatorClient, run: Run, tmp_path: Path) -> None:
    token = run(accounts.operators, "add", "anna", "--role", "viewer").strip()
    assert "anna, viewer" in run(accounts.operators, "me", "--token", token)
    assert "anna" in run(accounts.operators, "list") and "is revoked" in run(accounts.operators, "revoke", "anna")
    assert "operator.revoke" in run(accounts.operators, "audit")
    with pytest.raises(Refused, match="revoked"):
        run(accounts.operators, "me", "--token", token)
    with pytest.raises(Refused, match=r"bad_message: name: .*found"):
        run(accounts.operators, "add", "a b")
    spring = run(accounts.enrolment, "add", "spring", "--uses", "3", "--hours", "2").strip()
    ids = [
        http.post("/v1/enrol", json={"token": spring, "public_key": Party(http).public}).json()["device_id"]
        for _ in range(2)
    ]
    other = Party(http).enrol().id
    assert "2 of 3" in run(accounts.enrolment, "list")
    listed = json.loads(run(accounts.devices, "list", "--enrolment-token", "spring", "--json"))["devices"]
    assert {entry["device_id"] for entry in listed} == set(ids)
    assert "1 devices are revoked" in run(accounts.devices, "revoke", ids[0])
    assert json.loads(run(accounts.devices, "revoke", "--enrolment-token", "spring", "--json"))["revoked"] == ids[1:]
    assert http.post("/v1/enrol", json={"token": spring, "public_key": Party(http).public}).status_code == 403
    assert {entry.device_id for entry in client.devices() if entry.revoked_at is None} == {other}
    assert [entry.action for entry in client.actions(3)] == ["device.revoke", "enrolment.revoke", "device.revoke"]
    run(accounts.enrolment, "add", "autumn")
    assert "let in 0 devices" in run(accounts.enrolment, "revoke", "autumn")
    assert CliRunner().invoke(accounts.devices, ["revoke"]).exit_code == 2
    app = typer.Typer()
    app.command()(openapi.command)
    run(app, "--output", str(tmp_path / "openapi.json"))
    assert json.loads((tmp_path / "openapi.json").read_text()) == document() == json.loads(run(app))
