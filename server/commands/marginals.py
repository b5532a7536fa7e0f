"""``idiolect marginals``: push, pull, show, compare and take back the global word distributions, by version."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import write_file
from device_sdk.errors import DataError
from server.commands.shared import Answer, command, line, moment, show, table
from server.operators.client import OperatorClient
from server.operators.messages import MarginalsWords

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

app = typer.Typer(help="Push, pull, show and compare global marginals.", no_args_is_help=True)

FORMAT = "idiolect marginals, version 1"
_ALL = 1 << 24
_STILL = 1e-9
"""Log ratios up to this are rounding."""


@command(app, "push")
def push(
    client: OperatorClient,
    source: Annotated[
        Path, typer.Argument(help="What pull wrote, a JSON object of word -> count, or text to count words in.")
    ],
    bundle: Annotated[Path | None, typer.Option(help="Bundle that holds the word list.  [default: packaged]")] = None,
    smoothing: Annotated[float, typer.Option(help="Weight of the background, in words.")] = 100.0,
    note: Annotated[str, typer.Option(help="Kept with the version.")] = "",
    publish: Annotated[bool, typer.Option(help="Make it current at once.")] = True,
) -> Answer:
    """Publish a distribution that was pulled, or one made from counts or text that need no protection: they are sent
    without noise."""
    found = _read(source)
    if isinstance(found.get("format"), str):
        probabilities = _fit(client, source, found)
    else:
        probabilities = counts_to_probabilities(_check_counts(source, found), bundle, smoothing)
    made = client.push_marginals(probabilities, note=note, published=publish)
    return made, line(f"marginals {made.version} registered" + (" and published" if publish else ""))


@command(app, "show")
def show_marginals(
    client: OperatorClient,
    version: Annotated[int | None, typer.Argument(help="[default: the current version]")] = None,
    top: Annotated[int, typer.Option(help="How many words.", min=0, max=10000)] = 20,
) -> Answer:
    """Show the words a version lifts most over the background."""
    found = _words(client, version, top)
    rows = [
        (
            entry.word_id if entry.word is None else entry.word,
            *(f"{entry.probability:.3g}", f"{entry.probability / entry.background:.2f}", f"{entry.released_count:.1f}"),
        )
        for entry in found.top
    ]
    title = f"Marginals {found.version} (noise of a count: {found.noise_deviation:.2f})"
    return found, table(title, ("word", "probability", "times background", "released count"), rows)


@command(app, "pull")
def pull(
    client: OperatorClient,
    file: Annotated[Path, typer.Argument(help="JSON file to write: every word and its probability; push reads it.")],
    version: Annotated[int | None, typer.Argument(help="[default: the current version]")] = None,
) -> Answer:
    """Write a version to a file."""
    found = _words(client, version, _ALL)
    names = ("version", "parent", "round_id", "created_at", "noise_deviation", "note", "words_digest")
    told = {name: getattr(found, name) for name in names}
    entries = sorted(found.top, key=lambda entry: entry.word_id)
    content = {
        "format": FORMAT,
        **told,
        "words": [entry.word for entry in entries],
        "probabilities": [entry.probability for entry in entries],
        "released_counts": [entry.released_count for entry in entries],
    }
    write_file(file, json.dumps(content, indent=1) + "\n")
    summary = told | {"words": len(entries), "file": str(file)}
    return summary, line(f"marginals {found.version}: {len(entries)} words written to {file}")


@command(app, "diff")
def diff(
    client: OperatorClient,
    before: Annotated[int, typer.Argument(help="Version to compare with.")],
    after: Annotated[int, typer.Argument(help="Version that is compared.")],
    top: Annotated[int, typer.Option(help="How many words each way.", min=1, max=10000)] = 20,
) -> Answer:
    """Show which words one version makes likelier than another, and which less likely."""
    first, second = ({each.word_id: each for each in client.words(number, _ALL).top} for number in (before, after))
    names = {word: str(word) if entry.word is None else entry.word for word, entry in first.items()}
    chances = {word: (first[word].probability, second[word].probability) for word in first.keys() & second.keys()}
    found = {"before": before, "after": after, **moved(names, chances, top)}

    def present() -> None:
        typer.echo(f"marginals {before} -> {after}: {found['changed']} words moved, {found['divergence']:.4f} nats")
        for direction in ("up", "down"):
            rows = [
                (entry["word"], f"{entry['before']:.3g}", f"{entry['after']:.3g}", f"{entry['log_ratio']:+.3f}")
                for entry in found[direction]
            ]
            show(direction.capitalize(), ("word", f"in {before}", f"in {after}", "log ratio"), rows)

    return found, present


@command(app, "list")
def list_marginals(client: OperatorClient) -> Answer:
    """List versions, the newest first."""
    found = client.marginals()
    rows = [
        (
            *("*" if entry.version == found.current else "", entry.version, entry.parent),
            *(f"{entry.figures.get('surviving_words', 0):.0f}", f"{entry.noise_deviation:.2f}"),
            *(moment(entry.created_at), entry.note),
        )
        for entry in found.marginals
    ]
    columns = ("", "version", "parent", "words above noise", "noise", "created", "note")
    return found, table("Marginals (* is current)", columns, rows)


@command(app, "rollback")
def rollback(
    client: OperatorClient,
    version: Annotated[int, typer.Argument(help="Version to go back to; 0 is the background.")],
    note: Annotated[str, typer.Option(help="Why.")] = "rolled back",
) -> Answer:
    """Publish an older version again."""
    found = client.publish_marginals(version, note=note)
    return found, line(f"marginals {found.version} are current")


def _words(client: OperatorClient, version: int | None, top: int) -> MarginalsWords:
    return client.words(client.status().marginals_version if version is None else version, top)


def moved(names: Mapping[int, str], chances: Mapping[int, tuple[float, float]], top: int) -> dict[str, Any]:
    """What moved between two distributions, the largest log ratios (nats) first in each direction.

    names: word id -> word. chances: word id -> (probability before, after), positive. "divergence" is how much the
    later one differs from the earlier, sum of after * log(after / before)."""
    ratios = {word: math.log(after / before) for word, (before, after) in chances.items()}
    order = sorted(ratios, key=lambda word: (-ratios[word], word))

    def told(words: Iterable[int]) -> list[dict[str, Any]]:
        return [
            {"word": names[word], "word_id": word, "before": before, "after": after, "log_ratio": ratios[word]}
            for word, (before, after) in ((word, chances[word]) for word in words)
        ]

    up, down = [word for word in order if ratios[word] > _STILL], [word for word in order if ratios[word] < -_STILL]
    divergence = sum(after * ratios[word] for word, (_, after) in chances.items())
    found = {"changed": len(up) + len(down), "divergence": divergence}
    return found | {"up": told(up[:top]), "down": told(down[::-1][:top])}


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


def _read(source: Path) -> dict[str, Any]:
    try:
        text = source.read_text(encoding="utf-8")
        found: Any = json.loads(text) if source.suffix == ".json" else Counter(text.lower().split())
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: cannot be read ({error}); expected UTF-8 text or JSON") from error
    if not isinstance(found, dict):
        raise DataError(f"{source}: found {type(found).__name__}, expected a JSON object of word -> count")
    return found


def _check_counts(source: Path, found: dict[str, Any]) -> dict[str, float]:
    for word, count in found.items():
        if isinstance(count, bool) or not isinstance(count, int | float) or not 0 <= count < 1e12:
            raise DataError(f"{source}: {word}: found {count!r}, expected a count of 0 or more")
    return found


def _fit(client: OperatorClient, source: Path, found: dict[str, Any]) -> NDArray[np.float64]:
    """The probabilities that ``pull`` wrote, if they are over the server's word list."""
    import numpy as np

    if found["format"] != FORMAT:
        raise DataError(f"{source}: format: found {found['format']!r}, expected {FORMAT!r}; pull it again")
    try:
        probabilities, digest = np.array(found["probabilities"], np.float64), str(found["words_digest"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{source}: probabilities, words_digest: cannot be read ({error}); pull it again") from error
    if probabilities.ndim != 1 or not (np.isfinite(probabilities) & (probabilities > 0)).all():
        raise DataError(f"{source}: probabilities: found a value that is no positive number; pull it again")
    if digest != (expected := client.words(0, top=0).words_digest):
        wrong = f"{source}: words_digest: found {digest[:12]}, expected {expected[:12]} as the server's word list has"
        raise DataError(f"{wrong}; pull from a server with the same list")
    return probabilities
