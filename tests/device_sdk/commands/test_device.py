"""`idiolect device`: a state and its key, what its user agrees to, what is known, a check-in; each a run of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from device_sdk.bundle import Bundle
from device_sdk.commands.device import app
from device_sdk.commands.state import KEY_VARIABLE
from device_sdk.errors import CheckInError, ConfigurationError, FeedbackError, StateError

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
    assert f"made a key, {key}" in said
    assert len(bytes.fromhex(key.read_text())) == 32
    assert not key.is_relative_to(tmp_path / "state"), "a copy of the state is no copy of its key"
    if os.name == "posix":
        assert key.stat().st_mode & 0o777 == 0o600
    assert not run("status").stderr


def test_a_key_of_ones_own_comes_from_a_file_or_the_environment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    run("agree", "marginals", "--key-file", str(tmp_path / "key"))
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert json.loads(run("status", "--json").stdout)["learned"]["consent"]["marginals"]
    assert not list(tmp_path.rglob("state.key"))
    monkeypatch.setenv(KEY_VARIABLE, "11" * 32)
    with pytest.raises(StateError, match="cannot be decrypted"):
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
def test_a_state_without_its_key_or_no_state_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], given: str | None, message: str
) -> None:
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
    assert "yes  marginals" in said and "yes  words" in said
    assert "no   deltas" in run("withdraw", "deltas").stdout
    consent = json.loads(run("status", "--json").stdout)["learned"]["consent"]
    assert (consent["marginals"], consent["deltas"], consent["words"]) == (True, False, True)
    with pytest.raises(ConfigurationError, match="found 'delta', expected one of counting, learning, keeping"):
        run("agree", "delta")


def test_status_says_what_is_known(run: Run, tmp_path: Path) -> None:
    run("agree")
    said = run("status").stdout
    assert "has counted the words of 0 utterances" in said and "spent on marginals: epsilon 0" in said
    found = json.loads(run("status", "--json", "--output", str(tmp_path / "status.json")).stdout)
    assert found == json.loads((tmp_path / "status.json").read_text())
    assert found["learned"]["steps"] == 0 and found["remembered"] == []
    assert found["spent"] == {"marginals": 0.0, "deltas": 0.0, "words": 0.0}


def test_what_was_never_heard_cannot_be_corrected(run: Run) -> None:
    run("agree")
    with pytest.raises(FeedbackError, match="'0123'"):
        run("correct", "0123", "the right words")


def test_learning_from_nothing_says_so(run: Run) -> None:
    run("agree")
    assert "0 steps on 0 utterances in 0.0 s: nothing left to learn from" in run("learn").stdout
    report = json.loads(run("learn", "--json").stdout)
    assert (report["steps"], report["loss"]) == (0, None)


def test_all_is_forgotten_only_when_it_is_meant(run: Run) -> None:
    run("agree", "marginals")
    with pytest.raises(AssertionError, match="Aborted"):
        run("forget", typed="n\n")
    assert json.loads(run("status", "--json").stdout)["learned"]["consent"]["marginals"]
    run("forget", typed="y\n")
    assert not json.loads(run("status", "--json").stdout)["learned"]["consent"]["marginals"]


def test_a_check_in_that_reaches_nobody_is_named(run: Run) -> None:
    run("agree")
    with pytest.raises(CheckInError, match="https"):
        run("check-in", "http://idiolect.example", "--token", "x")
