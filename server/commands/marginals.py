"""``idiolect marginals``: push, show and list the global word distributions."""

from __future__ import annotations

import json
from base64 import b64encode
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.errors import DataError
from server.commands.operators import Answer, command, moment, show
from server.operator_client import OperatorClient

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["app", "counts_to_probabilities"]

app = typer.Typer(help="Push, show and list global marginals.", no_args_is_help=True)


@command(app, "push")
def push(
    client: OperatorClient,
    source: Annotated[Path, typer.Argument(help="JSON object of word -> count, or text to count words in.")],
    bundle: Annotated[Path | None, typer.Option(help="Bundle that holds the word list.  [default: packaged]")] = None,
    smoothing: Annotated[float, typer.Option(help="Weight of the background, in words.")] = 100.0,
    note: Annotated[str, typer.Option(help="Kept with the version.")] = "",
    publish: Annotated[bool, typer.Option(help="Make it current at once.")] = True,
) -> Answer:
    """Publish a distribution made from counts or text that need no protection: they are sent without noise."""
    probabilities = counts_to_probabilities(_read_counts(source), bundle, smoothing)
    content = {"probabilities": b64encode(probabilities.astype("<f8").tobytes()).decode(), "note": note}
    found = client.post("marginals", json=content | {"publish": publish})
    text = f"marginals {found['version']} registered" + (" and published" if publish else "")
    return found, lambda: typer.echo(text)


@command(app, "show")
def show_marginals(
    client: OperatorClient,
    version: Annotated[int | None, typer.Argument(help="[default: the current version]")] = None,
    top: Annotated[int, typer.Option(help="How many words.", min=0, max=10000)] = 20,
) -> Answer:
    """Show the words a version lifts most over the background."""
    number = client.get("status")["marginals_version"] if version is None else version
    found = client.get(f"marginals/{number}", top=top)

    def present() -> None:
        rows = [
            (
                entry["word"] if entry["word"] is not None else entry["word_id"],
                f"{entry['probability']:.3g}",
                f"{entry['probability'] / entry['background']:.2f}",
                f"{entry['released_count']:.1f}",
            )
            for entry in found["top"]
        ]
        title = f"Marginals {found['version']} (noise of a count: {found['noise_deviation']:.2f})"
        show(title, ("word", "probability", "times background", "released count"), rows)

    return found, present


@command(app, "list")
def list_marginals(client: OperatorClient) -> Answer:
    """List versions, the newest first."""
    found = client.get("marginals")

    def present() -> None:
        rows = [
            (
                "*" if entry["version"] == found["current"] else "",
                entry["version"],
                entry["parent"],
                f"{entry['figures'].get('surviving_words', 0):.0f}",
                f"{entry['noise_deviation']:.2f}",
                moment(entry["created_at"]),
                entry["note"],
            )
            for entry in found["marginals"]
        ]
        columns = ("", "version", "parent", "words above noise", "noise", "created", "note")
        show("Marginals (* is current)", columns, rows)

    return found, present


@command(app, "rollback")
def rollback(
    client: OperatorClient,
    version: Annotated[int, typer.Argument(help="Version to go back to; 0 is the background.")],
    note: Annotated[str, typer.Option(help="Why.")] = "rolled back",
) -> Answer:
    """Publish an older version again."""
    found = client.post(f"marginals/{version}/publish", params={"note": note})
    return found, lambda: typer.echo(f"marginals {found['version']} are current")


def counts_to_probabilities(counts: dict[str, float], bundle: Path | None, smoothing: float) -> NDArray[np.float64]:
    """Equation 6 over given counts: words outside the bundle's list go to its one bucket."""
    import numpy as np

    from server.registry.initial import initial_from_bundle

    initial = initial_from_bundle(bundle)
    index = {word: number for number, word in enumerate(initial.words)}
    total = smoothing * initial.background
    for word, count in counts.items():
        total[index.get(word, 0)] += count
    return np.asarray(total / total.sum(), np.float64)


def _read_counts(source: Path) -> dict[str, float]:
    try:
        text = source.read_text(encoding="utf-8")
        found: Any = json.loads(text) if source.suffix == ".json" else Counter(text.lower().split())
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: cannot be read ({error}); expected UTF-8 text or JSON") from error
    if not isinstance(found, dict):
        raise DataError(f"{source}: found {type(found).__name__}, expected a JSON object of word -> count")
    for word, count in found.items():
        if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < 1e12:
            raise DataError(f"{source}: {word}: found {count!r}, expected a count of 0 or more")
    return found
