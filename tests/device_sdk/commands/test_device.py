"""`idiolect device`: a state and its key, what its user agrees to, what is known, a check-in; each a run of its own."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
from typer.testing import CliRunner

from device_sdk import Bundle, CheckInError, ConfigurationError, FeedbackError, StateError
from device_sdk.cli import main
from device_sdk.commands.device import app
from device_sdk.commands.state import KEY_VARIABLE
from tests.device_sdk.checkin.site import site
from tests.server.parties import ENROLMENT
from tests.signals import noise

Run = Callable[..., Any]
KEY = "00" * 32


@pytest.fixture
def run(tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command on the state folder ``state``, as a user without any configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IDIOLECT_STATE", str(tmp_path / "state"))
    monkeypatch.delenv(KEY_VARIABLE, raising=False)

    def invoke(*words: str, typed: str | None = None) -> Any:
        result = CliRunner().invoke(app, [*words, "--bundle", str(tiny_bundle.path)], input=typed)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return invoke


def test_the_first_use_makes_a_key_for_the_user_alone_and_says_so(run: Run, tmp_path: Path) -> None:
    said = run("agree").stderr
    (key,) = (path for path in tmp_path.rglob("state.key"))
    assert f"made a key, {key}" in said and len(bytes.fromhex(key.read_text())) == 32
    assert not key.is_relative_to(tmp_path / "state"), "a copy of the state is no copy of its key"
    if os.name == "posix":
        assert key.stat().st_mode & 0o777 == 0o600
    assert not run("status").stderr


def test_a_key_comes_from_a_file_or_the_environment(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    run("agree", "marginals", "--key-file", str(tmp_path / "key"))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert json.loads(run("status", "--json").stdout)["learned"]["consent"]["marginals"]
    assert not list(tmp_path.rglob("state.key"))
    monkeypatch.setenv(KEY_VARIABLE, "11" * 32)
    with pytest.raises(StateError, match="found another key than it was made with"):
        run("status")


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["status"], None, r"state\.key: no such key file, expected the key .* --key-file or IDIOLECT_STATE_KEY"),
        (["status"], "a pass phrase", r"IDIOLECT_STATE_KEY: found a key that is not in hexadecimal digits"),
        (["status"], "00", r"key: found 1 bytes, expected at least 16"),
        (["status", "--state", "nowhere"], KEY, r"--state: nowhere holds no device's state; idiolect transcribe"),
        (["forget", "--yes", "--state", "nowhere"], KEY, r"--state: nowhere holds no device's state"),
    ],
)
def test_a_state_without_its_key_or_no_state_is_named(run: Run, monkeypatch, words, given, message: str) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        run("agree")
    if given is not None:
        monkeypatch.setenv(KEY_VARIABLE, given)
    with pytest.raises(StateError, match=message):
        run(*words)
    assert not Path("nowhere").exists()


def test_what_the_user_agrees_to_is_remembered(run: Run) -> None:
    run("agree", "marginals", "deltas")
    said = run("agree", "words").stdout
    assert "yes  marginals" in said and "yes  words" in said and "no   deltas" in run("withdraw", "deltas").stdout
    consent = json.loads(run("status", "--json").stdout)["learned"]["consent"]
    assert (consent["marginals"], consent["deltas"], consent["words"]) == (True, False, True)
    with pytest.raises(ConfigurationError, match="found 'delta', expected one of 'counting', 'learning', 'keeping'"):
        run("agree", "delta")


def test_status_says_what_is_known(run: Run, tmp_path: Path) -> None:
    run("agree")
    said = run("status").stdout
    assert "has counted the words of 0 utterances" in said and "spent on marginals: epsilon 0" in said
    found = json.loads(run("status", "--json", "--output", str(tmp_path / "status.json")).stdout)
    assert found == json.loads((tmp_path / "status.json").read_text())
    assert found["learned"]["steps"] == 0 and found["remembered"] == []
    assert found["spent"] == {"marginals": 0.0, "deltas": 0.0, "words": 0.0}
    assert "0 steps on 0 utterances in 0.0 s: nothing left to learn from" in run("learn").stdout
    report = json.loads(run("learn", "--json").stdout)
    assert (report["steps"], report["loss"]) == (0, None)
    with pytest.raises(FeedbackError, match="'0123'"):
        run("correct", "0123", "the right words")
    with pytest.raises(CheckInError, match="https"):
        run("check-in", "http://idiolect.example", "--token", "x")


def test_a_round_by_commands(run: Run, tiny_bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = ["--state", tmp_path / "state", "--bundle", tiny_bundle.path]
    soundfile.write(tmp_path / "order.wav", noise(9_600, 1), 16_000)
    deltas = {"clip_norm": 1.0, "noise_stddev": 2.0}
    settings = {"marginals": {"epsilon": 1.0}, "deltas": deltas, "weighting": "uniform", "goal": 1, "suppression": 0.0}
    with site(tmp_path / "server", tiny_bundle) as server:
        round_id = server.operator.open(**settings)
        run("agree", "keeping", "marginals", "deltas")
        capsys.readouterr()
        assert main(["transcribe", str(tmp_path / "order.wav"), *map(str, state), "--json"]) == 0
        (entry,) = json.loads(capsys.readouterr().out)["files"][0]["utterances"]
        waiting = json.loads(run("status", "--json").stdout)["remembered"]
        assert [(each["utterance_id"], each["feedback"]) for each in waiting] == [(entry["utterance_id"], False)]
        corrected = run("correct", entry["utterance_id"], "turn on the light", "--json").stdout
        assert json.loads(corrected) == {"utterance_id": entry["utterance_id"]}
        assert entry["utterance_id"] in run("status").stdout
        assert json.loads(run("learn", "--json").stdout)["steps"] > 0
        report = json.loads(run("check-in", server.url, "--token", ENROLMENT, "--json").stdout)
        assert report["round_id"] == round_id and report["left_out"] == []
        assert [(each["kind"], each["refused"]) for each in report["sent"]] == [("marginals", None), ("deltas", None)]
        status = json.loads(run("status", "--json").stdout)
        assert status["remembered"] == [] and status["learned"]["delta_reports"] == 1
        assert 0 < status["spent"]["marginals"] < 20 and 0 < status["spent"]["deltas"] < 20


def test_what_is_heard_without_consent_is_not_kept_and_the_user_is_told(run, tiny_bundle, tmp_path, capsys) -> None:
    for seed in range(2):
        soundfile.write(tmp_path / f"{seed}.wav", noise(9_600, seed), 16_000)
    words = ["transcribe", tmp_path / "0.wav", tmp_path / "1.wav", "--state", tmp_path / "state"]
    for consent in ([], ["keeping"]):
        run("agree", *consent)
        assert main([*map(str, words), "--bundle", str(tiny_bundle.path)]) == 0
        said = capsys.readouterr()
        remembered = [each["utterance_id"] for each in json.loads(run("status", "--json").stdout)["remembered"]]
        assert [line.split()[0] in remembered for line in said.out.splitlines()] == [bool(consent)] * 2
        assert ("idiolect device agree keeping" in said.err) == (not consent)
        assert ("idiolect device correct" in said.err) == bool(consent)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jobs", "2"], "--jobs: found 2 with --state, expected 1"),
        (["--no-rescore"], "--no-rescore: found it with --state"),
    ],
)
def test_what_a_device_cannot_do_is_refused(run: Run, tmp_path: Path, capsys, words: list[str], message: str) -> None:
    assert main(["transcribe", "--sample", "--state", str(tmp_path / "state"), *words]) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "state").exists()


def test_all_is_forgotten_only_when_it_is_meant(run: Run) -> None:
    run("agree", "marginals")
    with pytest.raises(AssertionError, match="Aborted"):
        run("forget", typed="n\n")
    assert json.loads(run("status", "--json").stdout)["learned"]["consent"]["marginals"]
    run("forget", typed="y\n")
    assert not json.loads(run("status", "--json").stdout)["learned"]["consent"]["marginals"]


def test_the_vocabulary_is_shown_and_changed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "contacts.vcf").write_text("BEGIN:VCARD\nFN:Saoirse Ronan\nEND:VCARD\n")
    shown = run("vocabulary", "--add", "niamh|neve", "--contacts", str(tmp_path / "contacts.vcf")).stdout
    assert "niamh  app, confirmed 0 times, also heard as neve" in shown and "saoirse ronan  contact" in shown
    left = run("vocabulary", "--remove", "saoirse ronan", "--remove", "nobody", "--undo", "--json").stdout
    assert [entry["phrase"] for entry in json.loads(left)["entries"]] == ["niamh"]
    assert "nobody: not there" in run("vocabulary", "--remove", "nobody").stdout


def test_who_forgets_the_bundle_loses_nothing(run: Run, tmp_path: Path) -> None:
    run("agree", "keeping")
    forgotten = CliRunner().invoke(app, ["status", "--state", str(tmp_path / "state")])
    assert isinstance(forgotten.exception, StateError)
    assert "state was made with another bundle, tiny" in str(forgotten.exception)
    assert "keeping" in run("status").stdout


@pytest.mark.parametrize("wrong", ["--add=r2d2", "--remove=room 5"])
def test_words_that_are_asked_for_together_come_together_or_not_at_all(run: Run, wrong: str) -> None:
    run("agree", "keeping")
    with pytest.raises(ConfigurationError, match=r"--(add 'r2d2'|remove): found '[25]'"):
        run("vocabulary", "--add", "niamh|neve", wrong)
    assert run("vocabulary").stdout.strip() == "nothing yet"


def test_contacts_beyond_the_limit_leave_nothing_of_what_was_asked_for(run, tmp_path: Path, monkeypatch) -> None:
    card = tmp_path / "big.vcf"
    card.write_text("BEGIN:VCARD\nFN:Ana\nFN:Ben\nFN:Zora\nEND:VCARD\n")
    words = ["vocabulary", "--add", "zorka", "--contacts", str(card)]
    with monkeypatch.context() as patch:
        patch.setattr("device_sdk.personalization.vocabulary.LIMIT", 3)
        with pytest.raises(ConfigurationError, match="found 4 phrases, expected at most 3; remove some"):
            run(*words)
    assert run("vocabulary").stdout.strip() == "nothing yet"
    listed = json.loads(run(*words, "--json").stdout)["entries"]
    assert [(each["phrase"], each["source"]) for each in listed] == [
        ("zorka", "app"),
        *((name, "contacts") for name in ("ana", "ben", "zora")),
    ]


def test_contacts_that_are_no_text_are_refused_by_line(run: Run, tmp_path: Path) -> None:
    card = tmp_path / "latin.vcf"
    card.write_bytes(b"BEGIN:VCARD\nVERSION:2.1\nFN:J\xfcrgen\nEND:VCARD\n")
    with pytest.raises(ConfigurationError, match=r"latin.vcf, line 3: found the byte 0xfc, expected text in UTF-8"):
        run("vocabulary", "--contacts", str(card))
