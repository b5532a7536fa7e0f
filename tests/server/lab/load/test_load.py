"""The load of a fleet, small: every part ends with finite figures, and its judge finds what is there to find."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device_sdk.benchmarks import Figure
from device_sdk.errors import ConfigurationError, StateError
from device_sdk.wire.messages import FIXED_POINT
from server.lab.benchmarks import fleet
from server.lab.load.ground import Sizes, cpu_seconds, fresh
from server.lab.load.kills import judge
from server.lab.load.series import direct

ONE = FIXED_POINT
SMALL = replace(Sizes().shared(1e-4), kills=2)


@pytest.mark.parametrize(
    ("receipts", "counted", "expected"),
    [
        ([("a", 1), ("a", 2), ("b", 1)], {"a": {1: ONE, 2: ONE}, "b": {1: ONE}}, (0, 0)),
        ([("a", 1), ("a", 2)], {"a": {1: ONE}}, (1, 0)),
        ([("a", 1), ("b", 1)], {"a": {1: ONE}}, (1, 0)),
        ([("a", 1)], {"a": {1: 2 * ONE}}, (0, 1)),
        ([("a", 1)], {"a": {1: ONE, 7: ONE}}, (0, 1)),
        ([("a", 1)], {"a": {1: ONE}, "b": {1: ONE}}, (0, 1)),
        ([("a", 1), ("a", 1)], {"a": {1: ONE}}, (1, 0)),
        ([("a", 1)], {"a": {2: ONE}}, (1, 1)),
    ],
    ids=["right", "word lost", "round lost", "twice", "unasked", "unasked round", "two of one word", "exchanged"],
)
def test_receipts_are_compared_with_releases(receipts: Any, counted: Any, expected: tuple[int, int]) -> None:
    assert judge(receipts, counted) == expected


def test_what_rounds_leave_is_measured_through_the_service(tmp_path: Path) -> None:
    with fresh("sqlite", tmp_path / "ground", SMALL) as ground:
        figures = direct(ground, lambda *_: None)
    assert all(math.isfinite(figure.ours) for figure in figures)
    (grown,) = [figure for figure in figures if "bytes a round" in figure.unit]
    assert 500 < grown.ours < 200_000, "a round's row and its marginals' at least"


def test_finished_parts_are_read_and_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def part(ground: Any, _: Any) -> list[Figure]:
        runs.append(ground.kind)
        return [Figure("reports", "a second", 3.0, target=2.0)]

    monkeypatch.setitem(fleet.PARTS, "sqlite", {"one": part, "two": part})
    first = fleet.benchmark("sqlite", 1e-4, tmp_path)
    (tmp_path / "sqlite.two.json").unlink()
    assert fleet.benchmark("sqlite", 1e-4, tmp_path) == first == 2 * [Figure("reports", "a second", 3.0, target=2.0)]
    assert runs == 3 * ["sqlite"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sqlite.one.json", "sqlite.two.json"]
    with pytest.raises(StateError, match="another --folder"):
        fleet.benchmark("sqlite", 1e-3, tmp_path)
    (tmp_path / "sqlite.one.json").write_text(json.dumps({"sizes": 3}))
    with pytest.raises(StateError, match=r"sqlite\.one\.json.*delete it"):
        fleet.benchmark("sqlite", 1e-4, tmp_path)


@pytest.mark.parametrize("asked", [{"database": "oracle"}, {"share": 0.0}, {"share": 2.0}])
def test_what_cannot_be_measured_is_refused_by_name(asked: dict[str, Any]) -> None:
    (name,) = asked
    with pytest.raises(ConfigurationError, match=name):
        fleet.benchmark(**asked)


def test_work_of_a_process_is_counted() -> None:
    import os

    before = cpu_seconds(os.getpid())
    if before is None:
        pytest.skip("no /proc here")
    sum(range(8_000_000))
    after = cpu_seconds(os.getpid())
    assert after is not None and after > before and cpu_seconds(None) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_every_part_has_its_figures(kind: Any, tmp_path: Path) -> None:
    if kind == "postgres":
        pytest.importorskip("pgserver", reason="no PostgreSQL here; install pgserver")
    for name, part in fleet.PARTS[kind].items():
        with fresh(kind, tmp_path / name, SMALL) as ground:
            figures = part(ground, lambda *_: None)
        assert figures and all(math.isfinite(figure.ours) for figure in figures)
        counted = [figure for figure in figures if figure.target == 0]
        assert all(figure.holds for figure in counted) and bool(counted) == (name in ("kills", "served"))
