"""``idiolect privacy table``: Pelikan et al. 2023's privacy tables, recomputed row by row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.commands.output import deliver
from device_sdk.errors import DataError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``idiolect privacy``."""
    app.command("table")(table)


def table(
    number: Annotated[list[int] | None, typer.Option("--table", help="Of these tables only: 2, 16 or 17.")] = None,
    pld: Annotated[bool, typer.Option(help="Also by privacy loss distributions (a minute or two).")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON to a file.")] = None,
) -> None:
    """Recompute tables 2, 16 and 17 of Pelikan et al. 2023: epsilon by RDP at each row's order, misprints named, PLD
    beside."""
    from rich.progress import track

    from server.privacy.published import judge, pld_epsilon, published_rows

    rows = [row for row in published_rows() if not number or row.table in number]
    if not rows:
        raise DataError(f"--table: found {number}, expected some of 2, 16 and 17")
    lines: list[dict[str, Any]] = []
    for row in track(rows, "privacy tables", disable=as_json or not sys.stderr.isatty()):
        verdict = judge(row)
        lines.append(
            {
                "table": row.table,
                "clip_norm": row.clip_norm,
                "sigma": row.sigma,
                "cohort": row.cohort,
                "population": row.population,
                "rounds": row.rounds,
                "delta": row.delta,
                "noise_multiplier": row.noise_multiplier,
                "printed_epsilon": row.epsilon,
                "printed_order": row.order,
                "rdp_epsilon": verdict.epsilon,
                "best_rdp_epsilon": verdict.best,
                "best_order": verdict.best_order,
                "misprint": verdict.misprint,
                "pld_epsilon": pld_epsilon(row.sampling, row.noise_multiplier, row.rounds, row.delta) if pld else None,
            }
        )
    right = sum(line["misprint"] is None for line in lines)
    document = {
        "adjacency": "user: one user's updates of all rounds added or removed",
        "sampling": "Poisson, each user in each round with chance cohort / population",
        "trust_model": "central: the server sees clipped updates and adds the noise",
        "rows": lines,
        "as_printed": right,
        "misprints": len(lines) - right,
    }
    if deliver(document, as_json, output):
        return
    _print(lines)
    typer.echo(f"{right} of {len(lines)} rows are as printed; {len(lines) - right} misprints")
    for key in ("adjacency", "sampling", "trust_model"):
        typer.echo(f"{key.replace('_', ' ')}: {document[key]}")


def _print(lines: list[dict[str, Any]]) -> None:
    from server.commands.operators import show

    rows = [
        (
            line["table"],
            f"{line['noise_multiplier']:.4g}",
            f"{line['cohort']:,}",
            f"{line['population']:,}",
            line["rounds"],
            f"{line['printed_epsilon']:.2g}",
            f"{line['printed_order']:g}",
            f"{line['rdp_epsilon']:.4g}",
            "" if line["pld_epsilon"] is None else f"{line['pld_epsilon']:.4g}",
            line["misprint"] or "",
        )
        for line in lines
    ]
    columns = ("table", "noise", "cohort", "population", "rounds", "printed", "order", "RDP", "PLD", "misprint")
    show("Epsilon of Pelikan et al. 2023", columns, rows)
