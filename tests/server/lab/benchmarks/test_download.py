"""The benchmark of downloads, with the model that ships."""

from __future__ import annotations

from server.lab.benchmarks.download import LENGTHS, benchmark


def test_differences_are_shorter_and_exact() -> None:
    figures = [figure for figure in benchmark() if figure.unit == "MB"]
    assert len(figures) == len(LENGTHS)
    assert all(figure.holds for figure in figures)
    assert figures[0].ours > figures[1].ours
