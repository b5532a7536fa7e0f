"""``idiolect serve`` as a process of its own."""

import json
import signal
import socket
import stat
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from device_sdk.bundle import Bundle
from device_sdk.errors import ConfigurationError
from server.commands.serve import command, read_tokens
from server.serve import run
from tests.server.commands.test_secrets import ran, serving
from tests.server.parties import initial, settings


def test_serve_until_told_to_stop(tiny_bundle: Bundle, tmp_path: Path) -> None:
    place = ("--bundle", str(tiny_bundle.path), "--database", str(tmp_path / "a.db"))
    with serving(tmp_path, *place) as (process, found):
        assert found["pid"] == process.pid
        assert httpx.get(f"{found['url']}/readyz", timeout=30).json()["model_version"] == tiny_bundle.version
        tokens = json.loads((tmp_path / "a.tokens.json").read_text())
        headers = {"Authorization": f"Bearer {tokens['operator_token']}"}
        assert httpx.get(f"{found['url']}/v1/operator/status", headers=headers, timeout=30).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0 and not (tmp_path / "ready.json").exists()


@pytest.mark.parametrize("option", ["--database", "--blobs"])
def test_state_that_cannot_be_kept_is_named_before_anything_is_written(tmp_path: Path, option: str) -> None:
    place = tmp_path / "place"
    if option == "--database":
        place.mkdir()
    else:
        place.write_text("a file")
    done = ran(tmp_path, "serve", "--port", "0", option, str(place))
    assert done.returncode == 1
    assert f"idiolect: ConfigurationError: {option}: {place} is a " in done.stderr, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


@pytest.mark.parametrize("operator", [None, "yours"])
def test_new_tokens_are_told_by_their_file(tmp_path: Path, capsys, operator: str | None) -> None:
    read_tokens(tmp_path / "tokens.json", None, operator)
    said = capsys.readouterr().err
    assert str(tmp_path / "tokens.json") in said and "enrolment_token" in said
    assert ("operator_token" in said) is (operator is None), "one that was given is not the file's"


def test_tokens_are_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "new" / "tokens.json"
    first = read_tokens(path, None, None)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and read_tokens(path, None, None) == first
    assert read_tokens(path, "mine", None) == ("mine", first[1])
    assert read_tokens(tmp_path / "none", "mine", "yours") == ("mine", "yours")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"operator_token": "x"}', '{"operator_token": 1, "enrolment_token": 2}']
)
def test_bad_token_files(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"tokens\.json"):
        read_tokens(path, None, None)


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}: cannot listen"):
            run(settings(tmp_path), initial(), host="127.0.0.1", port=port)
    assert not (tmp_path / "blobs").exists(), "nothing is opened before"


TOKENS = ("--enrolment-token", "long-enough", "--operator-token", "long-enough")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--enrolment-token", "short", "--operator-token", "long-enough"], "enrolment_token"),
        (["--marginals-cap", "0", *TOKENS], "marginals_cap"),
        (["--address-rate", "fast", *TOKENS], "--address-rate: found 'fast'"),
        (["--device-rate", "0:5", *TOKENS], "rates.device"),
        (["--trusted-proxy", "somewhere", *TOKENS], "trusted_proxies: found 'somewhere'"),
    ],
)
def test_bad_options(tmp_path: Path, words: list[str], message: str) -> None:
    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, [*words, "--database", str(tmp_path / "a.db")])
    assert isinstance(result.exception, ConfigurationError) and message in str(result.exception)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_seconds": 0.0}, "window_seconds"),
        ({"tick_seconds": float("nan")}, "tick_seconds"),
        ({"delta_probability": 1.0}, "delta_probability"),
        ({"operator_token": ""}, "operator_token"),
        ({"processes": 2}, "its file has one writer"),
    ],
)
def test_bad_settings(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        settings(tmp_path, **changes)


def test_settings_do_not_show_their_secrets(tmp_path: Path) -> None:
    assert "operator-token" not in repr(settings(tmp_path))
