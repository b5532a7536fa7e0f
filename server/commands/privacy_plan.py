"""``idiolect privacy plan --population N``: what a federation would cost its users, before it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from device_sdk.commands.output import deliver
from device_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from server.privacy.plans import Plan

__all__ = ["plan_cohorts"]


def plan_cohorts(
    asked: Plan, scales: str, populations: str, target: float, pld: bool, as_json: bool, output: Path | None
) -> None:
    """Epsilon of a user after all rounds, and with more users at the same noise of the mean update.

    scales: larger cohorts, of populations as much larger; populations: then still larger ones with the largest cohort;
    both are numbers with commas between. Larger cohorts take noise that grows with them, so that the model learns as
    before (Pelikan et al. 2023, tables 2, 16 and 17).
    """
    from server.privacy.plans import amplified, extrapolated, needed_scale, unamplified

    rows = []
    for number, row in enumerate(extrapolated(asked, _numbers(scales, "scales"), _numbers(populations, "populations"))):
        found = amplified(row.sampling, row.noise_multiplier, row.rounds, row.delta, pld=pld)
        rows.append(
            {
                "noise_multiplier": row.noise_multiplier,
                "cohort": row.cohort,
                "population": row.population,
                "sampling": row.sampling,
                "rounds": row.rounds,
                "delta": row.delta,
                "rdp_epsilon": found["rdp"],
                "order": found["order"],
                "pld_epsilon": found["pld"],
                "unamplified_epsilon": _finite(unamplified(row, row.rounds)),
                "extrapolated": number > 0,
            }
        )
    document: dict[str, Any] = {
        "adjacency": "user: one user's updates of all rounds added or removed",
        "sampling": "Poisson, each user in each round with chance cohort / population",
        "unamplified": "a user who is in every round and whose rounds are known",
        "trust_model": "central: the server sees clipped updates and adds the noise",
        "rows": rows,
        "target": target,
        "scale_for_target": needed_scale(asked, target),
    }
    if deliver(document, as_json, output):
        return
    _print(document)


def _print(document: dict[str, Any]) -> None:
    from server.commands.operators import show

    def number(value: float | str | None) -> str:
        return "" if value is None else value if isinstance(value, str) else f"{value:.3g}"

    rows = [
        (
            f"{row['noise_multiplier']:.4g}",
            f"{row['cohort']:,}",
            f"{row['population']:,}",
            f"{row['sampling']:.3g}",
            row["rounds"],
            number(row["rdp_epsilon"]),
            f"{row['order']:g}",
            number(row["pld_epsilon"]),
            number(row["unamplified_epsilon"]),
        )
        for row in document["rows"]
    ]
    columns = ("noise", "cohort", "population", "q", "rounds", "RDP", "order", "PLD", "in every round")
    show(f"Epsilon of a user at delta {document['rows'][0]['delta']:g}", columns, rows)
    scale = document["scale_for_target"]
    found = "is out of reach by more users alone" if scale is None else f"needs {scale:,.3g} times the users and cohort"
    typer.echo(f"epsilon {document['target']:g} {found}, at the same noise of the mean update")
    for key in ("adjacency", "sampling", "trust_model"):
        typer.echo(f"{key.replace('_', ' ')}: {document[key]}")


def _numbers(text: str, name: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [-1.0]
    if any(not 1 < value < math.inf for value in found):
        raise ConfigurationError(f"--{name}: found {text!r}, expected numbers above 1, separated by commas")
    return found


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "Infinity"
