"""What the experiment found: word errors of every cell over all seeds, and whether a robust average holds the bar."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from examples import runner
from examples.attackers.experiment import Attack, Averaging, Cell, Scale
from examples.runner import Errors
from server.lab.simulation.progress import Shown
from server.lab.statistics import in_percent

WORST = 0.05
"""How much higher, relative, word error may be with attackers than without."""


def summary(scale: Scale, cells: Sequence[Cell]) -> dict[str, Any]:
    """The JSON document. ``above``: relative to the mean of honest devices alone, all seeds' words together, with the
    95 % interval of a paired bootstrap over held-out voices."""
    honest = _errors(cells, None, "mean")
    rows = []
    for attack, averaging in scale.rows:
        own = [cell for cell in cells if (cell.attack, cell.averaging) == (attack, averaging)]
        above = runner.difference(honest, _errors(cells, attack, averaging))
        rows.append(
            {
                "attack": attack,
                "averaging": averaging,
                "wer": runner.rates({cell.seed: cell.errors.rate for cell in own}),
                "above": above and above["relative"],
            }
        )
    document: dict[str, Any] = {
        "source": scale.source,
        "devices": scale.shape.devices,
        "attackers": scale.attackers,
        "rounds": scale.rounds,
        "batch": scale.batch,
        "learning_rate": scale.learning_rate,
        "server_rate": scale.server_rate,
        "floor": scale.floor,
        "bound": scale.clip_norm,
        "seeds": sorted({cell.seed for cell in cells}),
        "words": sum(honest.words),
        "rows": rows,
        "worst": WORST,
    }
    document["findings"] = list(findings(document))
    return document


def findings(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A finding on each robust average, by its worst attack: whoever chooses an average does not choose the attack."""
    robust = [row for row in document["rows"] if row["attack"] is not None and row["averaging"] == "cosine"]
    for averaging in dict.fromkeys(row["averaging"] for row in robust):
        worst = max(
            (row for row in robust if row["averaging"] == averaging and row["above"]),
            key=lambda row: float(row["above"]["mean"]),
        )
        text = f"{averaging} against honest devices' mean, relative, worst by {worst['attack']}"
        yield runner.finding(text, worst["above"], f"at most {WORST:g}", worst["above"]["mean"] <= WORST)


def table(document: Mapping[str, Any]) -> Table:
    """Word errors in percent, with how much higher they are than honest devices' mean, relative."""
    rows = {(row["attack"], row["averaging"]): row for row in document["rows"]}
    averages = list(dict.fromkeys(averaging for _, averaging in rows if averaging is not None))

    def cell(attack: str | None, averaging: str) -> Shown:
        row = rows[attack, averaging]
        shown = f"{100 * row['wer']['mean']:.1f}"
        if (attack, averaging) == (None, "mean") or row["above"] is None:
            return Shown(shown)
        mean, low, high = in_percent(row["above"])
        return Shown(shown, f"({mean}: {low} to {high})")

    columns: dict[str, Any] = {"devices": lambda attack: attack or "all honest"}
    columns |= {averaging: lambda attack, averaging=averaging: cell(attack, averaging) for averaging in averages}
    return runner.table(
        f"Word errors of held-out voices in %, {document['source'].partition(':')[0]}, "
        f"seeds {', '.join(map(str, document['seeds']))}; in brackets against honest devices' mean, relative",
        dict.fromkeys(attack for attack, averaging in rows if averaging is not None),
        columns,
        f"{100 * document['attackers']:.0f} % of {document['devices']} devices attack, within the norm bound; before "
        f"the rounds {100 * rows[None, None]['wer']['mean']:.1f} %",
    )


def charts(document: Mapping[str, Any]) -> dict[str, str]:
    """Word errors by attack, a bar for each average."""
    groups: dict[str, dict[str, float | None]] = {}
    for row in document["rows"]:
        if row["averaging"] is not None:
            groups.setdefault(row["attack"] or "all honest", {})[row["averaging"]] = row["wer"]["mean"]
    return {"attacks": runner.chart(groups.items())}


def _errors(cells: Sequence[Cell], attack: Attack | None, averaging: Averaging | None) -> Errors:
    """Of all seeds."""
    return runner.join(cell.errors for cell in cells if (cell.attack, cell.averaging) == (attack, averaging))
