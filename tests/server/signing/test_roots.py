"""The offline side: keys on a disk, proposals, signatures, and the command for them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from device_sdk.errors import ConfigurationError
from server.commands.updates import app
from server.signing.roots import create, new_key, proposed, public_key, read_chain, read_key, rotate, sign


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create(tmp_path / "keys", keys=3, threshold=2, days=10.0, root_passphrase="offline", passphrase=None)
    return tmp_path / "keys"


def key_id(folder: Path, number: int) -> str:
    return public_key(read_key(folder / f"root-{number}.pem", "offline")).keyid


def test_keys_are_for_their_owner_only(folder: Path) -> None:
    keys = [*folder.glob("*.pem"), *folder.glob("server/keys/*.pem")]
    assert len(keys) == 6 and {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert b"ENCRYPTED" in (folder / "root-1.pem").read_bytes()
    path = folder / "server" / "keys" / "targets.pem"
    path.chmod(0o640)
    with pytest.raises(ConfigurationError, match="others can read this key"):
        read_key(path, None)


@pytest.mark.parametrize(
    ("passphrase", "why"), [(None, "no passphrase is set"), ("another", "passphrase is another one")]
)
def test_an_encrypted_key_needs_its_passphrase(folder: Path, passphrase: str | None, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        read_key(folder / "root-1.pem", passphrase)


def test_what_is_no_key_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.pem"
    path.touch(0o600)
    for content in (b"", b"-----BEGIN PRIVATE KEY-----\n", b"\0" * 64):
        path.write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"broken\.pem: cannot be read as a key"):
            read_key(path, None)
    with pytest.raises(ConfigurationError, match="cannot be written there"):
        new_key(folder / "root-1.pem", None)


def test_a_root_counts_when_the_old_keys_and_its_own_have_signed_it(folder: Path) -> None:
    """The new key takes the place of the first: two signatures of the old root's keys, and two of the new one's."""
    first = rotate(folder, role="root", days=20.0, revoke=key_id(folder, 1), root_passphrase="offline")
    assert (first.version, first.missing, len(first.unsigned)) == (2, 2, 4)
    with pytest.raises(ConfigurationError, match="waits for signatures"):
        rotate(folder, role=None, days=20.0)
    assert [sign(folder, folder / f"root-{number}.pem", "offline").missing for number in (4, 1, 1, 2)] == [2, 1, 1, 0]
    assert proposed(folder) is None
    chain = read_chain(folder / "server" / "roots")
    assert [each.root.version for each in chain] == [1, 2] and key_id(folder, 1) not in chain[1].root.keys
    with pytest.raises(ConfigurationError, match="no root waits"):
        sign(folder, folder / "root-2.pem", "offline")


def test_a_stranger_cannot_sign(folder: Path, tmp_path: Path) -> None:
    rotate(folder, role="targets", days=20.0)
    new_key(tmp_path / "stranger.pem", None)
    with pytest.raises(ConfigurationError, match="neither this root nor the one before"):
        sign(folder, tmp_path / "stranger.pem", None)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"role": "delegate"}, "role: found 'delegate'"),
        ({"role": "root", "revoke": "abc"}, "revoke: found abc"),
        ({"role": None, "threshold": 4}, "threshold: found 4 of 3 keys"),
        ({"role": None, "threshold": 0}, "threshold: found 0 of 3 keys"),
        ({"role": None, "days": 0.0}, "days: found 0"),
    ],
)
def test_a_rotation_that_makes_no_sense_is_refused(folder: Path, arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        rotate(folder, **{"days": 20.0} | arguments)
    assert proposed(folder) is None


def _swap(folder: Path) -> None:
    other = folder / "other"
    create(other, keys=1, threshold=1, days=1.0, root_passphrase=None, passphrase=None)
    rotate(other, role=None, days=1.0)
    sign(other, other / "root-1.pem", None)
    shutil.copy(other / "server" / "roots" / "2.root.json", folder / "server" / "roots")


def _unsigned(folder: Path) -> None:
    path = folder / "server" / "roots" / "1.root.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"signatures": []}))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_swap, "2.root.json: root was signed by 0/2 keys"),
        (_unsigned, "1.root.json: root was signed by 0/2 keys"),
        (lambda folder: shutil.copy(folder / "server/roots/1.root.json", folder / "server/roots/2.root.json"),
         "version: found 1, expected 2"),
        (lambda folder: (folder / "server/roots/1.root.json").unlink(), "holds no 1.root.json"),
        (lambda folder: (folder / "server/roots/1.root.json").write_text("{}"), "cannot be read as a root"),
    ],
)  # fmt: skip
def test_a_chain_with_a_break_is_refused(folder: Path, damage: Callable[[Path], None], why: str) -> None:
    damage(folder)
    with pytest.raises(ConfigurationError, match=why):
        read_chain(folder / "server" / "roots")


def test_thresholds_and_folders_are_checked(tmp_path: Path, folder: Path) -> None:
    for keys, threshold in ((1, 2), (1, 0)):
        with pytest.raises(ConfigurationError, match=f"threshold: found {threshold} of {keys}"):
            create(tmp_path / "a", keys=keys, threshold=threshold, days=1.0, root_passphrase=None, passphrase=None)
    with pytest.raises(ConfigurationError, match="found files there"):
        create(folder, keys=1, threshold=1, days=1.0, root_passphrase=None, passphrase=None)


def test_the_command_makes_rotates_and_signs(tmp_path: Path) -> None:
    folder = str(tmp_path / "keys")

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "1.root.json" in run("init", folder, "--keys", "2", "--threshold", "2")
    assert json.loads(run("status", folder, "--json"))["proposed"] is None
    assert "root 2 needs 2 signatures" in run("rotate", folder, "--role", "timestamp")
    assert "needs 1 signatures more" in run("sign-root", folder, f"{folder}/root-1.pem")
    status = json.loads(run("status", folder, "--json"))
    assert (status["version"], status["proposed"]["missing"], len(status["proposed"]["signed"])) == (1, 1, 1)
    assert "root 2 needs 1 signatures more" in run("status", folder)
    assert "2.root.json" in run("sign-root", folder, f"{folder}/root-2.pem")
    status = json.loads(run("status", folder, "--json"))
    assert (status["version"], status["roles"]["root"]["threshold"]) == (2, 2)
