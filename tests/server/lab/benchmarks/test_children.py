"""Measurements in processes of their own tell what they measured, or why they could not."""

import os
from pathlib import Path

import pytest

from device_sdk.errors import IdiolectError
from server.lab.benchmarks import bench_peers, cohort
from server.lab.benchmarks.children import peer_interpreter, run_child, run_peer


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
    assert run_peer("cohort", ()) is None and "make peers" in capsys.readouterr().err
    python = tmp_path / "python"
    python.touch()
    monkeypatch.setenv("IDIOLECT_PEERS", str(python))
    assert peer_interpreter() == python


def test_the_network_is_the_peers() -> None:
    ours, theirs = cohort._engine(1, 2, 2).task.network, bench_peers.network()
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "arguments", "names"),
    [
        ("aggregation", (10_000, 4, 5, 2), {"flwr", "pfl"}),
        ("cohort", (2, 3, 0), {"1", "5"}),
    ],
)
def test_the_peers_run_where_they_are_installed(call: str, arguments: tuple[int, ...], names: set[str]) -> None:
    if peer_interpreter() is None:
        pytest.skip("no peers here; run: make peers")
    answer = run_peer(call, arguments)
    assert answer is not None and answer.keys() == names
