"""The operators' commands against a server in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from device_sdk.bundle import Bundle
from device_sdk.checkin.connection import Refused
from device_sdk.errors import CheckInError, ConfigurationError, DataError, PrivacyError
from server.aggregation.weights_file import dump_weights
from server.commands import accounts, marginals, models, privacy, rounds
from server.operators.client import OperatorClient
from tests.server.conftest import InProcess, Run
from tests.server.parties import OPERATOR, Operator, Party, initial

NOISED = "goal = 9\nweighting = 'uniform'\nrounds = {}\nnoise_multiplier = {}\n[deltas]"
TWENTY = "at most 20 words a device"
EXAMPLES = Path(__file__).parents[3] / "examples" / "rounds"


@pytest.fixture
def toml(tmp_path: Path) -> Callable[[str], str]:
    """Writes a round's settings; the file's path."""

    def write(text: str) -> str:
        (tmp_path / "round.toml").write_text(text)
        return str(tmp_path / "round.toml")

    return write


def test_rounds(run: Run, device: Party, tmp_path: Path, toml: Callable[[str], str]) -> None:
    file = toml("goal = 5\n[marginals]\nepsilon = 1e8\n[deltas]\n")
    opened = json.loads(run(rounds.app, "open", file, "--no-privacy", "--json"))
    assert (opened["state"], opened["settings"]["goal"]) == ("open", 5)
    device.send_counts(opened["id"], {1: 256})
    assert opened["id"] in run(rounds.app, "list")
    assert "planned to open" in run(rounds.app, "show", opened["id"], "--output", str(tmp_path / "round.json"))
    assert json.loads((tmp_path / "round.json").read_text())["reports"]["marginals"] == 1
    closed = run(rounds.app, "close", opened["id"])
    assert "published" in closed and "discrete_laplace" in closed
    assert json.loads(run(rounds.app, "close", opened["id"], "--json"))["marginals_version"] == 1


def test_the_open_round_needs_no_name(run: Run) -> None:
    planned = json.loads(run(rounds.app, "open", "--planned", "--json"))["id"]
    for command in ("show", "close"):
        with pytest.raises(ConfigurationError, match=r"round: found none open; expected .*rounds list"):
            run(rounds.app, command)
    opened = json.loads(run(rounds.app, "open", "--json"))["id"]
    assert json.loads(run(rounds.app, "show", "--json"))["id"] == opened != planned
    closed = json.loads(run(rounds.app, "close", "--json"))
    assert (closed["id"], closed["state"]) == (opened, "abandoned"), "nobody reported"
    assert json.loads(run(rounds.app, "open", "--planned-round", planned, "--json"))["state"] == "open"
    assert "abandoned" in run(rounds.app, "close", planned, "--abandon")
    with pytest.raises(ConfigurationError, match="--planned-round: found beside"):
        run(rounds.app, "open", "round.toml", "--planned-round", planned)


def test_ids_are_whole_in_narrow_terminals(run: Run, device: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    opened = json.loads(run(rounds.app, "open", "--json"))
    for words in (["list"], ["show", opened["id"]], ["close", opened["id"], "--abandon"]):
        assert opened["id"] in run(rounds.app, *words), words
    (known,) = json.loads(run(accounts.devices, "list", "--json"))["devices"]
    assert known["device_id"] in run(accounts.devices, "list")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            "[marginals]\nmax_words = 7",
            {"marginals": "epsilon 1, discrete_laplace noise of the server, at most 7 words a device"}
            | {"minimum": "1 report a stream", "goal": "none: it closes at its deadline, or by `rounds close`"},
        ),
        (
            (EXAMPLES / "unseen_counts.toml").read_text(),
            {"marginals": f"epsilon 1, discrete_gaussian noise of every device, a share of it, {TWENTY}"},
        ),
        (
            (EXAMPLES / "unseen_deltas.toml").read_text(),
            {"deltas": "difference, clipped to 1, noise 0.565 of every device, seen in sums of 34 or more"}
            | {"minimum": "34 reports a stream", "goal": "500 reports a stream"},
        ),
        (
            "goal = 4\nweighting = 'uniform'\n[deltas]\nnoise_stddev = 0.5",
            {"deltas": "difference, clipped to 1, noise 0.5 of every device", "goal": "4 reports a stream"},
        ),
        (
            "goal = 4\nminimum = 2\nrounds = 3\nnoise_multiplier = 1.5\nweighting = 'uniform'\n[deltas]",
            {"deltas": "difference, clipped to 1, noise of 1.5 clip norms of the server"}
            | {"minimum": "2 reports a stream", "rounds": "3, one after another"},
        ),
        ("[deltas]", {"deltas": "difference, clipped to 1, no noise: epsilon is none (infinite)"}),
        ("[words]\nmax_words = 2", {"words": "epsilon 1, delta 1e-08, at most 2 words a device"}),
        (
            "[marginals]\n[sampling]\nrate = 0.5\namplified = true",
            {"asked": "poisson sampling, each with probability 0.5, of 1 devices, amplified"},
        ),
    ],
)
def test_an_open_round_says_what_it_collects(run: Run, device: Party, toml, settings: str, expected) -> None:
    opened = run(rounds.app, "open", toml(settings), "--no-privacy")
    shown = dict(tuple(part.strip() for part in line.split("│")[1:3]) for line in opened.splitlines() if "│" in line)
    assert expected.items() <= shown.items()
    (listed,) = json.loads(run(rounds.app, "list", "--json"))["rounds"]
    streams = ("marginals", "deltas", "words")
    assert {*streams} & shown.keys() == {each for each in streams if listed["settings"][each] is not None}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ("[deltas]", r"deltas: found noise .*1 round, epsilon none \(infinite\); expected .*noise_multiplier"),
        (
            "goal = 9\nweighting = 'uniform'\nnoise_multiplier = 0.02\n[deltas]",
            r"epsilon none \(1\.5e\+03\); expected at most 100",
        ),
        (
            "rounds = 900\ngoal = 9\nweighting = 'uniform'\nnoise_multiplier = 2.0\n[deltas]",
            "after 900 rounds, epsilon none",
        ),
        ("[marginals]\nepsilon = 101.0", r"marginals: .*none \(1e\+02\).*--user-epsilon"),
        ("[marginals]\nmode = 'paper'", r"marginals: .*none \(infinite\)"),
    ],
)
def test_rounds_that_protect_nobody_are_opened_by_who_says_so(run: Run, toml, settings: str, found: str) -> None:
    """The servers of these tests cap no stream: what a cap bounds is bounded."""
    file = toml(settings)
    for words in ([file], [file, "--planned"]):
        with pytest.raises(Refused, match=found) as refused:
            run(rounds.app, "open", *words)
        assert refused.value.code == "no_privacy" and "--no-privacy" in str(refused.value)
    assert json.loads(run(rounds.app, "list", "--json"))["rounds"] == []
    planned = json.loads(run(rounds.app, "open", file, "--planned", "--no-privacy", "--json"))["id"]
    with pytest.raises(ConfigurationError, match="--planned-round: found beside --no-privacy"):
        run(rounds.app, "open", "--planned-round", planned, "--no-privacy")
    assert "as its operator said" in run(rounds.app, "open", "--planned-round", planned)
    run(rounds.app, "close", "--abandon")
    assert json.loads(run(rounds.app, "open", file, "--no-privacy", "--json"))["settings"]["no_privacy"] is True


def test_a_file_does_not_say_that_nobody_need_be_protected(run: Run, toml: Callable[[str], str]) -> None:
    with pytest.raises(ConfigurationError, match=r"round\.toml: no_privacy: .*--no-privacy"):
        run(rounds.app, "open", toml("no_privacy = true\n[deltas]"))


def test_rounds_of_words(run: Run, http: Any, toml: Callable[[str], str]) -> None:
    opened = json.loads(run(rounds.app, "open", toml("[words]\nepsilon = 1e8"), "--no-privacy", "--json"))
    assert opened["settings"]["marginals"] is None
    for _ in range(2):
        assert Party(http).enrol().send_words(opened["id"], "cortado").status_code == 200
    closed = run(rounds.app, "close", opened["id"])
    assert "cortado (about 2 devices)" in closed and "words 2" in closed
    assert json.loads(run(rounds.app, "show", opened["id"], "--json"))["releases"]["words"]["words"] == {"cortado": 2}
    assert "words" in run(rounds.app, "list")


def test_rounds_of_gradients(run: Run, device: Party, toml: Callable[[str], str]) -> None:
    file = toml("[deltas]\nkind = 'gradient'\n[optimizer]\nkind = 'adam'\n[teacher]\ndecay = 0.9\ninterval = 3")
    opened = json.loads(run(rounds.app, "open", file, "--no-privacy", "--json"))
    assert opened["settings"]["deltas"]["encoding"] == "float32", "nothing is left out"
    assert device.send_delta(opened["id"], kind="gradient").status_code == 200
    closed = run(rounds.app, "close", opened["id"])
    assert "noise: none, gradient, global, float32" in closed
    assert "base-1" in closed, "the teacher that is published beside the new model"
    assert "teacher" in run(models.app, "list")


def test_what_rounds_need_of_the_server(run: Run, toml: Callable[[str], str]) -> None:
    for settings in ("preset = 'rao-2023'", "[deltas]\n[server_step]"):
        with pytest.raises(CheckInError, match="--rehearsal KIND:PATH"):
            run(rounds.app, "open", toml(settings), "--planned")


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_examples_can_be_opened_and_are_priced(run: Run, device: Party, example: Path) -> None:
    assert json.loads(run(rounds.app, "open", str(example), "--json"))["state"] == "open"
    planned = json.loads(run(rounds.app, "plan", str(example), "--json"))
    assert planned["settings"] == json.loads(run(rounds.app, "show", "--json"))["settings"]
    for stream, cost in planned["costs"].items():
        assert planned["settings"][stream] is not None and 0 < cost["round_epsilon"] <= cost["user_epsilon"] < 6
    assert "epsilon of a user, all rounds" in run(rounds.app, "plan", str(example))


def test_costs_of_planned_rounds(run: Run, toml: Callable[[str], str], tmp_path: Path) -> None:
    def cost(settings: str, *words: str) -> dict[str, Any]:
        costs = json.loads(run(rounds.app, "plan", toml(settings), *words, "--json"))["costs"]
        return dict(next(iter(costs.values())))

    one, ten = cost(""), cost("rounds = 10")
    assert one["scale_words"] == ten["scale_words"] == 20.0
    assert one["user_epsilon"] == ten["round_epsilon"] < 1.0 < ten["user_epsilon"] < 10.0
    assert ten["deviation_words"] == pytest.approx(10**0.5 * one["deviation_words"])
    paper = cost("rounds = 10\n[marginals]\nmode = 'paper'\nepsilon = 0.5")
    assert (paper["user_epsilon"], paper["count_epsilon"], paper["scale_words"]) == ("Infinity", 5.0, 2.0)
    assert paper["deviation_words"] == pytest.approx(2.0 * 2**0.5, rel=0.05), "the newest takes the others' place"
    for mechanism in ("discrete_laplace", "discrete_gaussian"):
        calibrated = cost(f"rounds = 10\n[marginals]\nmechanism = '{mechanism}'", "--user-epsilon", "2")
        assert calibrated["user_epsilon"] == pytest.approx(2.0, rel=5e-3)
    shares = "trust = 'distributed'\nminimum_survivors = 20\nnoise_stddev = 1.0"
    masked = cost(
        f"rounds = 10\nminimum = 20\ngoal = 40\nweighting = 'uniform'\n[deltas]\n{shares}", "--user-epsilon", "2"
    )
    assert masked["user_epsilon"] == pytest.approx(2.0, rel=5e-3)
    run(rounds.app, "plan", "--output", str(tmp_path / "plan.json"))
    assert json.loads((tmp_path / "plan.json").read_text())["delta"] == 1e-6
    with pytest.raises(PrivacyError, match="mode"):
        run(rounds.app, "plan", toml("[marginals]\nmode = 'paper'"), "--user-epsilon", "1")
    with pytest.raises(ConfigurationError, match="--user-epsilon: found no marginals"):
        run(rounds.app, "plan", toml("[deltas]"), "--user-epsilon", "1")


def test_models(run: Run, tmp_path: Path, operator: Operator, tiny_bundle: Bundle) -> None:
    with pytest.raises(ConfigurationError, match="nothing to go back to"):
        run(models.app, "rollback")
    file = tmp_path / "new.safetensors"
    file.write_bytes(dump_weights(initial(seed=2).weights))
    assert "registered and published" in run(models.app, "push", str(file), "--version", "v2", "--note", "trial")
    listed = run(models.app, "list")
    assert "v2" in listed and "trial" in listed and "base-1 is current" in run(models.app, "rollback")
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
    with pytest.raises(Refused, match=r"bad_message: settings\.share: .*found 0\.0"):
        run(models.app, "rollout", "v3", "--share", "0")
    with pytest.raises(CheckInError, match="rollout_running"):
        run(models.app, "rollout", "v3")
    assert "model v2 is taken back; model base-1 stays" in run(models.app, "rollback", "--note", "too slow")
    begun = json.loads(run(models.app, "rollout", "v3", "--share", "0.2", "--minimum", "5", "--no-automatic", "--json"))
    assert {"share": 0.2, "minimum": 5, "automatic": False}.items() <= begun["settings"].items()
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


def test_marginals(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "news.txt"
    text.write_text("coffee Coffee milk\n")
    assert "Marginals 0" in run(marginals.app, "show") and "background" in run(marginals.app, "list")
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


@pytest.mark.parametrize("content", ["[1]", "{", '{"a": -1}', '{"a": true}'])
def test_bad_counts(run: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match=r"x\.json"):
        run(marginals.app, "push", str(tmp_path / "x.json"))


def test_privacy(run: Run, operator: Operator, device: Party) -> None:
    round_id = operator.open(deltas={})
    device.send_delta(round_id)
    shown = run(privacy.app, "ledger", "--devices")
    assert "infinite" in shown and device.id in shown
    assert json.loads(run(privacy.app, "ledger", "--json"))["streams"]["deltas"]["epsilon"] == "Infinity"
    operator.close(round_id)
    round_id = operator.open(marginals={"epsilon": 2.0})
    device.send_counts(round_id, {1: 256})
    found = json.loads(run(privacy.app, "ledger", "--json"))["streams"]["marginals"]
    assert 0 < found["epsilon"] <= 2.0 < found["utterance_epsilon"] <= 4.0
    shown = run(privacy.app, "ledger")
    told = ("epsilon of a user", "epsilon of an utterance", "added or removed", "without amplification", "central:")
    assert all(words in shown for words in told)


def test_privacy_audit(run: Run) -> None:
    found = json.loads(run(privacy.app, "audit", "--runs", "16000", "--confidence", "0.999", "--json"))
    assert len(found["samplers"]) == 9 and all(line["lower_bound"] >= 0 for line in found["samplers"])
    assert found["as_expected"]


def test_errors_name_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(CheckInError, match="does not exist"):
        run(rounds.app, "show", "r9-none")
    with pytest.raises(Refused, match="no_such_route"):
        run(rounds.app, "show", "../operators")
    with pytest.raises(CheckInError, match=r"bad_token.*idiolect-server\.tokens\.json"):
        run(rounds.app, "list", "--token", "wrong")
    missing = r"no operator token.*IDIOLECT_OPERATOR_TOKEN.*--token.*idiolect-server\.tokens\.json"
    with pytest.raises(CheckInError, match=missing):
        OperatorClient("http://testserver", "").status()
    with pytest.raises(DataError, match="cannot be written"):
        run(rounds.app, "list", "--output", str(tmp_path / "none" / "x.json"))
    for status, words in ((200, "is this the server"), (502, "status 502, without a reason")):
        other = httpx.MockTransport(lambda _request, status=status: httpx.Response(status, text="<html>"))
        with pytest.raises(CheckInError, match=words):
            OperatorClient("http://testserver", "token", transport=other).status()


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:8470", "http://testserver/v1"])
def test_what_is_no_servers_address_is_told_what_one_is(http: Any, address: str) -> None:
    transport = InProcess(http) if address.startswith("http") else None
    with pytest.raises(CheckInError, match=r"expected an address such as http://127\.0\.0\.1:8470$"):
        OperatorClient(address, OPERATOR, transport=transport).status()


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://[", "nonsense"])
def test_a_server_that_is_down(address: str) -> None:
    with pytest.raises(CheckInError, match="cannot be reached"):
        OperatorClient(address, "token").status()
