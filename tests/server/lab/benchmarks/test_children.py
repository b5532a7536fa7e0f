"""Measurements in processes of their own tell what they measured, or why they could not."""

import os
from pathlib import Path

import pytest

from device_sdk.errors import IdiolectError
from server.lab.benchmarks.children import peer_interpreter, run_child, run_peers


def test_a_child_answers_or_fails_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yardstick.py").write_text(
        "import os\n"
        "def good():\n"
        "    print('on the way')\n"
        "    return {'pid': os.getpid(), 'threads': os.environ['OMP_NUM_THREADS']}\n"
        "def bad():\n    raise ValueError('no yard here')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    answer = run_child("yardstick", "good")
    assert answer["pid"] != os.getpid() and answer["threads"] == "1"
    with pytest.raises(IdiolectError, match="no yard here"):
        run_child("yardstick", "bad")


def test_peers_are_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IDIOLECT_PEERS", raising=False)
    assert run_peers(1, 1, 1, 1) is None and "make peers" in capsys.readouterr().err
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv("IDIOLECT_PEERS", str(python))
    assert peer_interpreter() == python


@pytest.mark.slow
def test_the_peers_run_where_they_are_installed() -> None:
    if peer_interpreter() is None:
        pytest.skip("no peers here; run: make peers")
    answer = run_peers(10_000, 4, 5, 2)
    assert answer is not None and answer.keys() == {"flwr", "pfl"}
