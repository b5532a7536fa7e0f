"""A measuring process tells what it measured, or why it could not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from device_sdk.errors import IdiolectError
from server.lab.benchmarks.children import measured


def test_a_child_answers_or_fails_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "yardstick.py").write_text(
        "import os\n"
        "def good():\n"
        "    print('on the way')\n"
        "    return {'pid': os.getpid(), 'threads': os.environ['OMP_NUM_THREADS']}\n"
        "def bad():\n    raise ValueError('no yard here')\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    found = measured("yardstick", "good")
    assert found["pid"] != os.getpid() and found["threads"] == "1"
    with pytest.raises(IdiolectError, match="no yard here"):
        measured("yardstick", "bad")
