"""What marginals could give at most on recordings, whatever a device counts: a bound to read before tuning any.

    python examples/liu_2020/yardsticks.py --data barista:PATH --seeds 3

Every utterance is recognized once; its list is then put in order again with the frequencies of words that only the
truth knows, by the lambda that suits each row best. See server/lab/simulation/yardsticks.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from device_sdk.bundle import Bundle
from device_sdk.commands.output import deliver
from server.lab.simulation.population import Shape, gather_all
from server.lab.simulation.progress import progress
from server.lab.simulation.yardsticks import heard_lists, yardsticks
from server.lab.statistics import in_percent


def main(
    data: Annotated[str, typer.Option(help="Recordings with words and slots: barista:PATH, folder:PATH.")],
    bundle: Annotated[str | None, typer.Option(help="Bundle; the packaged one by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="As in `idiolect simulate`.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="How many orders of what is said.")] = 3,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON to standard output instead of the table.")] = False,
    output: Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")] = None,
) -> None:
    """Print slot and word errors of rows that know what no device can, beside the frozen model's."""
    opened = Bundle.open(bundle)
    voices = opened.manifest.training.get("voices", {})
    with tempfile.TemporaryDirectory(prefix="idiolect-yardsticks-") as folder, progress() as tell:
        populations = gather_all(data, range(1, seeds + 1), Shape(rounds=rounds), voices, Path(folder), tell)
        said = heard_lists(opened, populations, lambda done, total: tell("recognized", done, total))
        lexicon = next(iter(populations.values())).lexicon
    document = yardsticks(said, opened.words, opened.background, lexicon)
    if deliver(document, json_, output, folders=True):
        return
    table = Table(title=f"{document['voices']} voices, {len(document['seeds'])} orders, errors in %")
    for column in ("frequencies of", "slots", "words", "slots against frozen, points (95 %)", "lambda"):
        table.add_column(column, justify="left" if column == "frequencies of" else "right")
    for row in document["rows"]:
        mean, low, high = in_percent(row["difference"])
        rates = [f"{100 * row[name]:.1f}" for name in ("slot_error", "wer")]
        table.add_row(row["name"], *rates, f"{mean} ({low} to {high})", str(row.get("lambda", "")))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
