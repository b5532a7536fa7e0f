"""Runs a benchmark and prints its figures beside their peers'."""

import sys
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.benchmarks import as_json
from device_sdk.cli import BENCHMARKS, available, load, summary
from device_sdk.commands.output import AsJson, Output, deliver, print_table
from device_sdk.errors import ConfigurationError


def command(
    name: Annotated[str | None, typer.Argument(help="Which benchmark to run; all are listed without one.")] = None,
    bundle: Annotated[Path | None, typer.Option(help="A bundle to measure, for benchmarks that take one.")] = None,
    seed: Annotated[int | None, typer.Option(help="What is drawn, for benchmarks that draw.")] = None,
    database: Annotated[str | None, typer.Option(help="sqlite or postgres alone, for benchmarks of both.")] = None,
    share: Annotated[float | None, typer.Option(help="Of the whole size, for benchmarks that can be smaller.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Keeps finished parts, for benchmarks that go on there.")] = None,
    json_: AsJson = False,
    output: Output = None,
) -> None:
    """Run the benchmark NAME, every figure with its peer measured in the same run; without NAME, list them all. The
    exit status is 1 where a figure misses its target."""
    benchmarks = available(BENCHMARKS)
    if name is None:
        known = {each: summary(point) for each, point in benchmarks.items()}
        if not deliver(known, json_, output):
            for each, line in known.items():
                print(f"{each:{max(map(len, known))}}  {line}")
        return
    if name not in benchmarks:
        raise ConfigurationError(f"benchmark: found {name!r}, expected one of {', '.join(benchmarks) or '(none)'}")
    benchmark = load(benchmarks[name])
    given = {"bundle": bundle, "seed": seed, "database": database, "share": share, "folder": folder}
    chosen = {option: value for option, value in given.items() if value is not None}
    for option in chosen.keys() - signature(benchmark).parameters.keys():
        raise ConfigurationError(f"--{option}: benchmark {name!r} takes no {option}; leave it out")
    report = as_json(name, benchmark(**chosen))
    if not deliver(report, json_, output):
        _print_table(report)
    if any(figure["holds"] is False for figure in report["figures"]):
        print("idiolect: some figures miss their target", file=sys.stderr)
        raise typer.Exit(1)


def _print_table(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report['name']} on {report['machine']}")
    for column in ("metric", "ours", "unit", "peer", "peer's", "ratio", "target", "holds"):
        table.add_column(column, justify="left" if column in {"metric", "unit", "peer"} else "right")
    for figure in report["figures"]:
        names = ("metric", "ours", "unit", "peer", "peer_value", "ratio", "target", "holds")
        table.add_row(*(_cell(figure[name]) for name in names))
    print_table(Console(), table)


def _cell(value: float | str | bool | None) -> str:
    if isinstance(value, bool):
        return "[green]yes[/]" if value else "[red]no[/]"
    return value or "" if isinstance(value, str | None) else f"{value:.4g}"
