"""What the experiment found: word errors of every cell over all seeds, and whether a robust average holds the bar."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from examples.attackers.experiment import Averaging, Cell, Scale
from server.lab.simulation.attackers.attacks import AttackKind
from server.lab.simulation.outcomes import Outcome, rate
from server.lab.simulation.shown import Shown
from server.lab.statistics import paired_bootstrap

__all__ = ["WORST", "summary", "table", "verdict_lines", "verdicts"]

WORST = 0.05
"""How much higher, relative, word error may be with attackers than without."""


def summary(scale: Scale, cells: Sequence[Cell]) -> dict[str, Any]:
    """The JSON document. ``above``: relative to the mean of honest devices alone, all seeds' words together, with the
    95 % interval of a paired bootstrap over held-out voices."""
    seeds = sorted({cell.seed for cell in cells})
    honest = _outcomes(cells, None, "mean")
    rows = []
    for attack, averaging in scale.rows:
        own = _outcomes(cells, attack, averaging)
        by_seed = [rate(cell.heldout, "wer") for cell in cells if (cell.attack, cell.averaging) == (attack, averaging)]
        difference = paired_bootstrap(
            [outcome.word_errors for outcome in honest],
            [outcome.word_errors for outcome in own],
            [outcome.words for outcome in own],
            [outcome.voice for outcome in own],
        ).relative
        rows.append(
            {
                "attack": attack,
                "averaging": averaging,
                "wer": rate(own, "wer"),
                "by_seed": by_seed,
                "spread": statistics.stdev([each or 0.0 for each in by_seed]) if len(by_seed) > 1 else None,
                "above": difference.as_json(),
            }
        )
    return {
        "source": scale.source,
        "devices": scale.shape.devices,
        "attackers": scale.attackers,
        "rounds": scale.rounds,
        "batch": scale.batch,
        "learning_rate": scale.learning_rate,
        "server_rate": scale.server_rate,
        "floor": scale.floor,
        "bound": scale.clip_norm,
        "seeds": seeds,
        "words": sum(outcome.words for outcome in honest),
        "rows": rows,
        "worst": WORST,
        "holds": verdicts(rows),
    }


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, bool]]:
    """Robust average -> attack -> whether word error stays within ``WORST`` of the mean of honest devices alone."""
    found: dict[str, dict[str, bool]] = {}
    for row in rows:
        if row["attack"] is not None and row["averaging"] != "mean":
            found.setdefault(row["averaging"], {})[row["attack"]] = row["above"]["mean"] <= WORST
    return found


def verdict_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """A sentence on each robust average, by its worst attack: whoever chooses an average does not choose the attack."""
    bar = f"{100 * document['worst']:.0f} % above honest devices' mean"
    for averaging, attacks in document["holds"].items():
        rows = [row for row in document["rows"] if row["averaging"] == averaging and row["attack"] in attacks]
        worst = max(rows, key=lambda row: row["above"]["mean"])
        verdict = "at most" if all(attacks.values()) else "NOT within"
        yield f"{averaging}: {verdict} {bar}; {worst['attack']} is worst: {_relative(worst['above'])}"


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent, with how much higher they are than honest devices' mean, relative."""
    result = Table(
        title=f"Word errors of held-out voices in %, {document['source'].partition(':')[0]}, "
        f"seeds {', '.join(map(str, document['seeds']))}; in brackets against honest devices' mean, relative",
        caption=f"{100 * document['attackers']:.0f} % of {document['devices']} devices attack, within the norm bound",
    )
    result.add_column("devices")
    averages = list(dict.fromkeys(row["averaging"] for row in document["rows"] if row["averaging"] is not None))
    for averaging in averages:
        result.add_column(averaging, justify="right")
    found = {(row["attack"], row["averaging"]): row for row in document["rows"]}
    for attack in dict.fromkeys(row["attack"] for row in document["rows"]):
        result.add_row(attack or "all honest", *(_cell(found[attack, averaging]) for averaging in averages))
    result.add_row("before the rounds", _cell(found[None, None]), *[""] * (len(averages) - 1))
    return result


def _cell(row: Mapping[str, Any]) -> Shown:
    shown = f"{100 * row['wer']:.1f}"
    if (row["attack"], row["averaging"]) == (None, "mean"):
        return Shown(shown)
    return Shown(shown, f"({_relative(row['above'])})")


def _relative(above: Mapping[str, float]) -> str:
    return f"{100 * above['mean']:+.1f}: {100 * above['low']:+.1f} to {100 * above['high']:+.1f}"


def _outcomes(cells: Sequence[Cell], attack: AttackKind | None, averaging: Averaging | None) -> list[Outcome]:
    return [
        outcome for cell in cells if (cell.attack, cell.averaging) == (attack, averaging) for outcome in cell.heldout
    ]
