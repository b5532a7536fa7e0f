"""Rows that are kept, figures over seeds, findings and what is shown of them; and every script's options."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from device_sdk.errors import DataError
from examples import runner
from examples.runner import Errors
from tests.examples.scripts import run_script


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    errors: Errors
    losses: Sequence[float]
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Recipe:
    rate: float = 1.0


def test_a_row_is_made_once_for_a_recipe(tmp_path: Path) -> None:
    row = Row("a", Errors([1, 0], [2, 2], ["p", "q"]), [float("inf"), 1.5], ((1, 0.5),))
    make = Mock(return_value=row)
    for recipe in (Recipe(), Recipe(), Recipe(2.0)):
        assert runner.keep(tmp_path, ("a, b", 1), recipe, Row, make) == row
    assert make.call_count == 2
    (path, _) = sorted(tmp_path.iterdir())
    for damage in ("{", "{}"):
        path.write_text(damage)
        with pytest.raises(DataError, match=r"a--b-1-.*not a finished row"):
            for recipe in (Recipe(), Recipe(2.0)):
                runner.keep(tmp_path, ("a, b", 1), recipe, Row, make)


def test_rows_are_chosen_by_name_or_part() -> None:
    known = {name: name for name in ("EMA", "EMA + slots", "oracle")}
    for only, chosen in ((None, list(known)), (["EMA"], ["EMA"]), (["slots", "or"], ["EMA + slots", "oracle"])):
        assert runner.choose(known, only) == chosen
    with pytest.raises(DataError, match="no name holds 'x'; expected part of one of: EMA,"):
        runner.choose(known, ["EMA", "x"])


def test_figures_over_seeds_and_utterances() -> None:
    first, second = runner.rates({1: 0.5, 2: 0.3}), runner.rates({2: 0.2, 1: 0.3})
    assert first == {"mean": 0.4, "std": pytest.approx(0.02**0.5), "by_seed": {"1": 0.5, "2": 0.3}}
    change = runner.seed_difference(first, second)
    assert change["mean"] == pytest.approx(-0.15) and change["low"] < -0.2 < 0 < change["high"]
    assert runner.seed_difference(first, runner.rates({2: 0.2})) == {"mean": pytest.approx(-0.1)}
    errors = Errors([1, 1, 0], [3, 1, 2], ["p", "q", "q"])
    assert errors.rate == pytest.approx(2 / 6) and errors.where([False, True, False]).rate == 1.0
    assert str(errors.where([False] * 3).rate) == "nan"
    better = runner.difference(errors, Errors([0, 1, 0], [3, 1, 2], ["p", "q", "q"]))
    assert better is not None and better["relative"]["mean"] == -0.5 and better["groups"] == 2
    assert runner.difference(Errors([0], [1], ["p"]), errors) is None
    assert runner.join([errors, errors]).words == [3, 1, 2] * 2


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (0.25, "holds: a cut: +0.250, expected above 0"),
        ({"mean": -0.1, "low": -0.2, "high": 0.0}, "does NOT hold: a cut: -0.100 (-0.200 to +0.000), expected above 0"),
    ],
)
def test_findings_are_told_in_a_line(value: float, line: str) -> None:
    assert runner.remark(runner.finding("a cut", value, "above 0", lambda mean: mean > 0)) == line


def test_tables_and_charts_hold_every_row() -> None:
    rows = {"a": runner.rates({1: 0.5, 2: 0.3}), "b": runner.rates({1: 0.25})}
    console = Console(record=True, width=100)
    columns = {"row": lambda item: item[0], "test": lambda item: runner.percent(item[1])}
    console.print(runner.table("errors", rows.items(), columns))
    text = console.export_text()
    assert "40.0 ± 14.1" in text and "25.0" in text and runner.percent(None) == ""
    drawn = runner.chart((name, {"test": rate["mean"], "other": None}) for name, rate in rows.items())
    assert drawn.startswith("<svg") and "xmlns" in drawn and drawn.count("<title>") == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["gao_2022", "--rows", "nobody"], "gao_2022: rows: no name holds 'nobody'"),
        (["pelikan_2023", "--recipe", "none.toml"], "pelikan_2023: none.toml: not a recipe"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(options: list[str], said: str, monkeypatch, tmp_path: Path) -> None:
    module = import_module(f"examples.{options[0]}.__main__")
    monkeypatch.setattr("sys.argv", [f"examples/{options[0]}/__main__.py", *options[1:], "--work", str(tmp_path)])
    with pytest.raises(SystemExit) as stopped:
        runner.start(module.main)
    assert str(stopped.value).startswith(said)


@pytest.mark.parametrize("paper", ["attackers", "gao_2022", "pelikan_2023", "ramesh_2023", "rao_2023", "liu_2020"])
def test_every_script_tells_what_it_takes(paper: str) -> None:
    done = run_script(paper, "--help")
    assert done.exit_code == 0, done.exception
    assert all(option in done.stdout for option in ("--work", "--json", "--output", "--plots"))
