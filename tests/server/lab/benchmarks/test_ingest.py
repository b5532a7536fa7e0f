"""The ingest benchmark's own measurements, at a size that a test can afford."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.lab.benchmarks import ingest


def test_every_figure_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"DELTAS": 4, "COUNTS": 6, "REPEATS": 1, "DISK_SECONDS": 0.05}.items():
        monkeypatch.setattr(ingest, name, value)
    monkeypatch.chdir(tmp_path)
    figures = ingest.benchmark()
    assert [figure.peer for figure in figures[::2]] == ["durability off"] * 2
    assert all(figure.ours > 0 and (figure.peer_value or 0) > 0 for figure in figures)
    assert list(tmp_path.iterdir()) == [], "it cleans up"
