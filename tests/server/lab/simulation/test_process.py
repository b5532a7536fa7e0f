"""The server of a simulation keeps its state in its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.bundle import Bundle
from server.lab.simulation.process import ServerProcess


def test_what_the_environment_says_of_another_server_is_not_its_own(
    tmp_path: Path, tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, name in (("IDIOLECT_DATABASE", "other.db"), ("IDIOLECT_BLOBS", "other.blobs")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    process = ServerProcess(tmp_path / "own", str(tiny_bundle.path))
    process.start()
    try:
        assert list((tmp_path / "own" / "server.blobs").rglob("*.safetensors"))
    finally:
        process.stop()
    assert not (tmp_path / "other.db").exists()
    assert not (tmp_path / "other.blobs").exists()
