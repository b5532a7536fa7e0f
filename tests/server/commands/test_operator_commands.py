"""The operators' commands against a server in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from device_sdk.bundle import Bundle
from device_sdk.errors import CheckInError, ConfigurationError, DataError, PrivacyError
from server.aggregation.weights_file import dump_weights
from server.commands import accounts, marginals, models, operators, privacy, rounds
from server.operators.client import OperatorClient
from tests.server.parties import OPERATOR, Operator, Party, initial

Run = Callable[..., str]


class InProcess(httpx.BaseTransport):
    """Hands requests to starlette's test client, whichever HTTP library that one is built on."""

    def __init__(self, http: Any) -> None:
        self._http = http

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        headers = dict(request.headers)
        answer = self._http.request(request.method, str(request.url), headers=headers, content=request.read())
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.content)


@pytest.fixture
def run(http: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command whose requests go to the server in this process; returns what it printed."""
    monkeypatch.setattr(operators, "OperatorClient", partial(OperatorClient, transport=InProcess(http)))
    monkeypatch.setenv("IDIOLECT_SERVER", "http://testserver")
    monkeypatch.setenv("IDIOLECT_OPERATOR_TOKEN", OPERATOR)
    monkeypatch.setenv("COLUMNS", "200")

    def invoke(app: typer.Typer, *words: str) -> str:
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


def test_rounds(run: Run, device: Party, tmp_path: Path) -> None:
    opened = json.loads(run(rounds.app, "open", "--epsilon", "1e8", "--deltas", "--yes", "--goal", "5", "--json"))
    assert (opened["state"], opened["settings"]["goal"]) == ("open", 5)
    device.send_counts(opened["id"], {1: 256})
    assert opened["id"] in run(rounds.app, "list")
    shown = run(rounds.app, "show", opened["id"], "--output", str(tmp_path / "round.json"))
    assert "planned to open" in shown
    assert json.loads((tmp_path / "round.json").read_text())["reports"]["marginals"] == 1
    closed = run(rounds.app, "close", opened["id"])
    assert "published" in closed
    assert "discrete_laplace" in closed
    again = json.loads(run(rounds.app, "close", opened["id"], "--json"))
    assert again["marginals_version"] == 1


def test_the_open_round_needs_no_name(run: Run) -> None:
    planned = json.loads(run(rounds.app, "plan", "--json"))["id"]
    for command in ("show", "close"):
        with pytest.raises(ConfigurationError, match=r"round: found none open; expected .*rounds list"):
            run(rounds.app, command)
    opened = json.loads(run(rounds.app, "open", "--json"))["id"]
    assert json.loads(run(rounds.app, "show", "--json"))["id"] == opened != planned
    closed = json.loads(run(rounds.app, "close", "--json"))
    assert (closed["id"], closed["state"]) == (opened, "abandoned"), "nobody reported"


def test_ids_are_whole_in_narrow_terminals(run: Run, device: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    opened = json.loads(run(rounds.app, "open", "--json"))
    for words in (["list"], ["show", opened["id"]], ["close", opened["id"], "--abandon"]):
        assert opened["id"] in run(rounds.app, *words), words
    (known,) = json.loads(run(accounts.devices, "list", "--json"))["devices"]
    assert known["device_id"] in run(accounts.devices, "list")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--max-words", "7"],
            [
                ("marginals", "epsilon 1, discrete_laplace noise of the server, at most 7 words a device"),
                ("minimum", "1 report a stream"),
                ("goal", "none: it closes at its deadline, or by `rounds close`"),
            ],
        ),
        (
            ["--trust", "distributed", "--minimum", "3", "--group-size", "4"],
            [
                (
                    "marginals",
                    "epsilon 1, discrete_gaussian noise of every device, a share of it, at most 20 words a device",
                ),
                ("minimum", "3 reports a stream"),
            ],
        ),
        (
            ["--deltas", "--no-marginals", "--noise", "0.5", "--goal", "4"],
            [
                ("deltas", "difference, clipped to 1, noise 0.5 of every device"),
                ("goal", "4 reports a stream"),
            ],
        ),
        (
            ["--deltas", "--noise-multiplier", "1.5", "--goal", "4", "--minimum", "2", "--rounds", "3"],
            [
                ("deltas", "difference, clipped to 1, noise of 1.5 clip norms of the server"),
                ("minimum", "2 reports a stream"),
                ("rounds", "3, one after another"),
            ],
        ),
        (["--deltas", "--yes"], [("deltas", "difference, clipped to 1, no noise: epsilon is infinite")]),
        (
            ["--words", "--no-marginals", "--new-words", "2"],
            [("words", "epsilon 1, delta 1e-08, at most 2 words a device")],
        ),
    ],
)
def test_an_open_round_says_what_it_collects(run: Run, words: list[str], expected: list[tuple[str, str]]) -> None:
    opened = run(rounds.app, "open", *words)
    shown = dict(tuple(part.strip() for part in line.split("│")[1:3]) for line in opened.splitlines() if "│" in line)
    assert set(expected) <= set(shown.items())
    (listed,) = json.loads(run(rounds.app, "list", "--json"))["rounds"]
    again = run(rounds.app, "show", listed["id"])
    assert all(f" {name} " in again and value in again for name, value in expected)
    assert {"marginals", "deltas", "words"} & set(shown) == {
        stream for stream in ("marginals", "deltas", "words") if listed["settings"][stream] is not None
    }


@pytest.mark.parametrize("way", ["options", "file", "planned"])
def test_deltas_without_noise_are_opened_by_who_means_it(run: Run, tmp_path: Path, way: str) -> None:
    file = tmp_path / "round.json"
    file.write_text(json.dumps({"deltas": {}}))
    planned = json.loads(run(rounds.app, "plan", "--deltas", "--json"))["id"]
    words = {"options": ["--deltas"], "file": ["--settings", str(file)], "planned": ["--planned-round", planned]}[way]
    with pytest.raises(ConfigurationError, match=r"--noise: found 0 .*expected .*--noise-multiplier.*--yes"):
        run(rounds.app, "open", *words)
    assert [entry["state"] for entry in json.loads(run(rounds.app, "list", "--json"))["rounds"]] == ["planned"]
    assert json.loads(run(rounds.app, "open", *words, "--yes", "--json"))["state"] == "open"


@pytest.mark.parametrize(("answer", "expected"), [("n", "Aborted"), ("y", "cannot be reached")])
def test_a_terminal_is_asked_about_deltas_without_noise(answer: str, expected: str) -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        words = ["rounds", "open", "--deltas", "--json", "--server", "http://127.0.0.1:1"]
        done = subprocess.run(
            [sys.executable, "-m", "device_sdk.cli", *words],
            stdin=theirs,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "IDIOLECT_OPERATOR_TOKEN": OPERATOR},
            check=False,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 1 and done.stdout == ""
    assert "epsilon is infinite" in done.stderr and expected in done.stderr, done.stderr


def test_rounds_of_words(run: Run, http: Any) -> None:
    options = ["--no-marginals", "--words", "--words-epsilon", "1e8", "--words-delta", "1e-9", "--new-words", "2"]
    opened = json.loads(run(rounds.app, "open", *options, "--json"))
    assert opened["settings"]["marginals"] is None
    plan = opened["settings"]["words"]
    assert (plan["epsilon"], plan["delta"], plan["max_words"]) == (1e8, 1e-9, 2)
    for _ in range(2):
        assert Party(http).enrol().send_words(opened["id"], "cortado").status_code == 200
    closed = run(rounds.app, "close", opened["id"])
    assert "cortado (about 2 devices)" in closed and "words 2" in closed
    again = json.loads(run(rounds.app, "show", opened["id"], "--json"))
    assert again["releases"]["words"]["words"] == {"cortado": 2}
    assert "words" in run(rounds.app, "list")


def test_planned_rounds_and_settings_files(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "round.json"
    file.write_text(json.dumps({"marginals": {"epsilon": 2.5}, "minimum": 3}))
    planned = json.loads(run(rounds.app, "open", "--settings", str(file), "--planned", "--json"))
    assert (planned["state"], planned["settings"]["marginals"]["epsilon"]) == ("planned", 2.5)
    again = json.loads(run(rounds.app, "plan", "--deltas", "--json"))["settings"]
    assert (again["deltas"]["kind"], again["deltas"]["encoding"]) == ("difference", "float32"), "nothing is left out"
    opened = json.loads(run(rounds.app, "open", "--planned-round", planned["id"], "--json"))
    assert opened["state"] == "open"
    assert "abandoned" in run(rounds.app, "close", planned["id"], "--abandon")
    for content in ("{", "[1]"):
        file.write_text(content)
        with pytest.raises(ConfigurationError, match=r"round\.json"):
            run(rounds.app, "open", "--settings", str(file))
    noisy = json.loads(run(rounds.app, "open", "--deltas", "--noise", "0.1", "--goal", "4", "--json"))
    assert noisy["settings"]["weighting"] == "uniform"


def test_rounds_of_gradients(run: Run, device: Party, tmp_path: Path) -> None:
    words = ["--no-marginals", "--deltas", "--kind", "gradient", "--batch-size", "4", "--encoding", "int8"]
    words += ["--scale-per", "tensor", "--clipping", "dim", "--optimizer", "adam", "--teacher-decay", "0.9"]
    words += ["--teacher-interval", "3", "--rounds", "7"]
    planned = json.loads(run(rounds.app, "plan", *words, "--json"))
    assert planned["state"] == "planned"
    settings = planned["settings"]
    assert settings["deltas"] == {
        "version": 1,
        "clip_norm": 1.0,
        "noise_stddev": 0.0,
        "minimum_utterances": 1,
        "kind": "gradient",
        "batch_size": 4,
        "clipping": "dim",
        "encoding": "int8",
        "scale_per": "tensor",
        "measure": "none",
    }
    assert (settings["teacher"], settings["rounds"]) == ({"decay": 0.9, "interval": 3}, 7)
    run(rounds.app, "close", planned["id"], "--abandon")
    opened = json.loads(run(rounds.app, "open", *words[:4], *words[12:], "--yes", "--json"))
    assert device.send_delta(opened["id"], kind="gradient").status_code == 200
    closed = run(rounds.app, "close", opened["id"])
    assert "noise: none, gradient, global, float32" in closed
    assert "base-1" in closed, "the teacher that is published beside the new model"
    assert "teacher" in run(models.app, "list")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--sampling", "poisson", "--rate", "0.25", "--amplified", "--noise-multiplier", "1.5"],
            {"sampling": {"kind": "poisson", "rate": 0.25, "over_selection": 1.0, "amplified": True}, "goal": None}
            | {"noise_multiplier": 1.5, "weighting": "uniform"},
        ),
        (
            ["--sampling", "fixed", "--over-selection", "1.3", "--goal", "20"],
            {"sampling": {"kind": "fixed", "rate": None, "over_selection": 1.3, "amplified": False}},
        ),
        (
            ["--buffered", "--goal", "8", "--staleness-limit", "3"],
            {"buffered": {"staleness_limit": 3, "staleness_weight": "inverse_root"}, "weighting": "uniform"},
        ),
        (
            ["--buffered", "--goal", "8", "--noise-multiplier", "1"],
            {"buffered": {"staleness_limit": 10, "staleness_weight": "constant"}},
        ),
        (["--weighting", "word_errors"], {"weighting": "word_errors", "sampling": None, "buffered": None}),
        (["--server-step", "8"], "no_rehearsal, server_step|server_step: .*--rehearsal"),
        (["--buffered"], "goal: found none; a buffered round"),
        (["--sampling", "poisson", "--amplified"], "rate: found none; amplified"),
        (["--sampling", "roulette", "--goal", "3"], "sampling"),
        (["--noise-multiplier", "1", "--weighting", "loss", "--goal", "3"], "weighting: weights by loss"),
    ],
)
def test_cohorts(run: Run, words: list[str], expected: Any) -> None:
    options = ["--no-marginals", "--deltas", *words, "--json"]
    if isinstance(expected, str):
        with pytest.raises(CheckInError, match=expected):
            run(rounds.app, "plan", *options)
        return
    settings = json.loads(run(rounds.app, "plan", *options))["settings"]
    assert {name: settings[name] for name in expected} == expected


def test_a_sampled_round_says_whom_it_asks(run: Run, device: Party) -> None:
    assert device.id
    words = ["--sampling", "poisson", "--rate", "0.5", "--amplified", "--json"]
    opened = json.loads(run(rounds.app, "open", *words))
    assert opened["eligible"] == 1
    assert "poisson sampling, each with probability 0.5, of 1 devices, amplified" in " ".join(
        run(rounds.app, "show", opened["id"]).split()
    )
    with pytest.raises(ConfigurationError, match="--sampling: found none beside --rate"):
        run(rounds.app, "plan", "--rate", "0.5")


def test_presets(run: Run) -> None:
    with pytest.raises(ConfigurationError, match="expected one of rao-2023"):
        run(rounds.app, "plan", "--preset", "ramesh-2023")
    with pytest.raises(CheckInError, match=r"start it with --rehearsal KIND:PATH"):
        run(rounds.app, "plan", "--preset", "rao-2023")


def test_models(run: Run, tmp_path: Path, operator: Operator, tiny_bundle: Bundle) -> None:
    with pytest.raises(ConfigurationError, match="nothing to go back to"):
        run(models.app, "rollback")
    file = tmp_path / "new.safetensors"
    file.write_bytes(dump_weights(initial(seed=2).weights))
    assert "registered and published" in run(models.app, "push", str(file), "--version", "v2", "--note", "trial")
    listed = run(models.app, "list")
    assert "v2" in listed
    assert "trial" in listed
    assert "base-1 is current" in run(models.app, "rollback")
    assert operator.get("status")["model_version"] == "base-1"
    assert "v2 is current" in run(models.app, "rollback", "v2")
    # A bundle of another architecture is read whole and refused by the server.
    with pytest.raises(CheckInError, match="not a parameter of this round's model"):
        run(models.app, "push", str(tiny_bundle.path))
    assert CliRunner().invoke(models.app, ["push", str(file)]).exit_code == 2


def test_rollouts(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    for number in (2, 3):
        file.write_bytes(dump_weights(initial(seed=number).weights))
        run(models.app, "push", str(file), "--version", f"v{number}", "--no-publish")
    with pytest.raises(CheckInError, match="no_rollout"):
        run(models.app, "promote")
    assert "v2 goes to 10 % of the devices" in run(models.app, "rollout", "v2")
    with pytest.raises(CheckInError, match="rollout_running"):
        run(models.app, "rollout", "v3")
    assert "model v2 is taken back; model base-1 stays" in run(models.app, "rollback", "--note", "too slow")
    begun = json.loads(run(models.app, "rollout", "v3", "--share", "0.2", "--minimum", "5", "--no-automatic", "--json"))
    assert {name: begun["settings"][name] for name in ("share", "minimum", "automatic")} == {
        "share": 0.2, "minimum": 5, "automatic": False,
    }  # fmt: skip
    shown = run(models.app, "rollout")
    assert "rolled back" in shown and "too slow" in shown and "running" in shown and "0/0 of 0" in shown
    assert "model v3 is current" in run(models.app, "promote", "--force")
    assert "base-1 is current" in run(models.app, "rollback")
    run(models.app, "rollback", "v3")
    assert "promoted" in run(models.app, "rollout")
    found = json.loads(run(models.app, "lineage", "--json"))
    assert (found["version"], [entry["version"] for entry in found["lineage"]]) == ("v3", ["v3", "base-1"])
    assert "Lineage of model v2" in run(models.app, "lineage", "v2")
    with pytest.raises(ConfigurationError, match="'none' is not in the registry"):
        run(models.app, "lineage", "none")


def test_marginals(run: Run, tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "news.txt"
    text.write_text("coffee Coffee milk\n")
    with pytest.raises(CheckInError, match="expected 40"):
        run(marginals.app, "push", str(text), "--bundle", str(tiny_bundle.path))
    shown = run(marginals.app, "show")
    assert "Marginals 0" in shown
    assert "background" in run(marginals.app, "list")
    assert json.loads(run(marginals.app, "show", "0", "--top", "2", "--json"))["top"][0]["word"] == "<unk>"
    assert "0 are current" in run(marginals.app, "rollback", "0")
    monkeypatch.setattr(marginals, "counts_to_probabilities", lambda *_: initial().background)
    assert "marginals 1 registered and published" in run(marginals.app, "push", str(text), "--note", "news")
    assert json.loads(run(marginals.app, "push", str(text), "--no-publish", "--json"))["version"] == 2
    assert "Marginals 1" in run(marginals.app, "show")


def test_pushed_counts_are_equation_6(tiny_bundle: Bundle) -> None:
    found = marginals.counts_to_probabilities({"coffee": 3, "zzz": 1}, tiny_bundle.path, 10.0)
    expected = 10.0 * tiny_bundle.background
    expected[tiny_bundle.words.id("coffee")] += 3
    expected[0] += 1
    assert found == pytest.approx(expected / 14.0)


@pytest.mark.parametrize(
    ("name", "content"), [("x.json", "[1]"), ("x.json", "{"), ("x.json", '{"a": -1}'), ("x.json", '{"a": true}')]
)
def test_bad_counts(run: Run, tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"x\.json"):
        run(marginals.app, "push", str(tmp_path / name))


def test_privacy(run: Run, operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={})
    device.send_delta(round_id)
    shown = run(privacy.app, "ledger", "--devices")
    assert "infinite" in shown
    assert device.id in shown
    assert json.loads(run(privacy.app, "ledger", "--json"))["streams"]["deltas"]["epsilon"] == "Infinity"
    operator.close(round_id)
    round_id = operator.open(marginals={"epsilon": 2.0})
    device.send_counts(round_id, {1: 256})
    found = json.loads(run(privacy.app, "ledger", "--json"))["streams"]["marginals"]
    assert 0 < found["epsilon"] <= 2.0 < found["utterance_epsilon"] <= 4.0
    shown = run(privacy.app, "ledger")
    for words in (
        "epsilon of a user",
        "epsilon of an utterance",
        "added or removed",
        "without amplification",
        "central:",
    ):
        assert words in shown


def test_privacy_plan(run: Run, tmp_path: Path) -> None:
    def plan(*words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(run(privacy.app, "plan", *words, "--json"))
        return found

    one, ten = plan(), plan("--rounds", "10")
    assert one["scale_words"] == ten["scale_words"] == 20.0
    assert one["user_epsilon"] < 1.0 < ten["user_epsilon"] < 10.0
    assert ten["deviation_words"] == pytest.approx(10**0.5 * one["deviation_words"])
    paper = plan("--mode", "paper", "--epsilon", "0.5", "--rounds", "10")
    assert (paper["user_epsilon"], paper["count_epsilon"], paper["scale_words"]) == ("Infinity", 5.0, 2.0)
    for mechanism in ("discrete_laplace", "discrete_gaussian"):
        words = ("--mechanism", mechanism, "--rounds", "10", "--user-epsilon", "2")
        assert plan(*words)["user_epsilon"] == pytest.approx(2.0, rel=5e-3)
    assert "stands out" in run(privacy.app, "plan", "--output", str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_text())["rounds"] == 1
    with pytest.raises(ConfigurationError, match=r"^mechanism: found discrete_laplace"):
        run(privacy.app, "plan", "--trust", "distributed")
    with pytest.raises(PrivacyError, match="mode"):
        run(privacy.app, "plan", "--mode", "paper", "--user-epsilon", "1")


def test_privacy_words(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "words.jsonl"
    source.write_text("\n".join(json.dumps(["zyxwort", f"rollout{'x' * number}"]) for number in range(40)))
    options = (str(source), "--max-words", "2", "--epsilon", "8", "--delta", "1e-9")
    found = json.loads(run(privacy.app, "words", *options, "--json"))
    assert list(found["words"]) == ["zyxwort"]
    assert found["threshold"] < 10
    shown = run(privacy.app, "words", *options, "--output", str(tmp_path / "out.json"))
    assert "zyxwort" in shown
    assert "rollout" not in shown + (tmp_path / "out.json").read_text()
    source.write_text('["one"]\n{"secret": 1}')
    with pytest.raises(DataError, match="line 2: expected a JSON list") as raised:
        run(privacy.app, "words", str(source))
    assert "secret" not in str(raised.value)
    for option, value in (("--max-words", "0"), ("--epsilon", "0"), ("--delta", "1"), ("--epsilon", "nan")):
        with pytest.raises(PrivacyError, match=f"{option}: found"):
            run(privacy.app, "words", str(source), option, value)


def test_privacy_audit(run: Run) -> None:
    found = json.loads(run(privacy.app, "audit", "--runs", "16000", "--confidence", "0.999", "--json"))
    assert len(found["samplers"]) == 7
    assert all(line["lower_bound"] >= 0 for line in found["samplers"])
    assert found["as_expected"]


def test_errors_name_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CheckInError, match="does not exist"):
        run(rounds.app, "show", "r9-none")
    with pytest.raises(CheckInError, match=r"bad_token.*idiolect-server\.tokens\.json"):
        run(rounds.app, "list", "--token", "wrong")
    missing = r"no operator token.*IDIOLECT_OPERATOR_TOKEN.*--token.*idiolect-server\.tokens\.json"
    with pytest.raises(CheckInError, match=missing):
        OperatorClient("http://testserver", "").get("status")
    with pytest.raises(DataError, match="cannot be written"):
        run(rounds.app, "list", "--output", str(tmp_path / "none" / "x.json"))
    for status, words in ((200, "is this the server"), (502, "status 502, without a reason")):
        other = httpx.MockTransport(lambda _request, status=status: httpx.Response(status, text="<html>"))
        with pytest.raises(CheckInError, match=words):
            OperatorClient("http://testserver", "token", transport=other).get("status")


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:8470", "http://testserver/v1"])
def test_what_is_no_servers_address_is_told_what_one_is(http: Any, address: str) -> None:
    transport = InProcess(http) if address.startswith("http") else None
    with pytest.raises(CheckInError, match=r"expected an address such as http://127\.0\.0\.1:8470$"):
        OperatorClient(address, OPERATOR, transport=transport).get("status")


def test_a_server_that_is_down() -> None:
    for address in ("http://127.0.0.1:1", "http://[", "nonsense"):
        with pytest.raises(CheckInError, match="cannot be reached"):
            OperatorClient(address, "token").get("status")
