"""``idiolect privacy words``: which words devices may have on their next public list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from device_sdk.commands.output import deliver
from device_sdk.errors import DataError, PrivacyError

if TYPE_CHECKING:
    from device_sdk.wire.messages import WordPlan

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``idiolect privacy``."""
    app.command("words")(words)


def words(
    contributions: Annotated[
        Path, typer.Argument(help="JSON lines: a list of words outside the public list, one line for each device.")
    ],
    max_words: Annotated[int, typer.Option(help="Words that a device may name.")] = 5,
    epsilon: Annotated[float, typer.Option(help="Of the release, for one device.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Of the release, for one device.")] = 1e-7,
    bundle: Annotated[Path | None, typer.Option(help="Bundle that holds the public list.  [default: packaged]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON to a file.")] = None,
) -> None:
    """Release new words that enough devices named, with (epsilon, delta) for each device; the rest is never shown.

    Every call is a release of its own, and costs that much again: keep what it says.
    """
    from server.commands.operators import show
    from server.privacy.new_words import devices_of, released_words, threshold
    from server.registry.initial import initial_from_bundle

    plan = _plan(max_words, epsilon, delta)
    listed = frozenset(initial_from_bundle(bundle).words)
    found = released_words(devices_of(_read(contributions), listed, plan), plan)
    document = {
        "words": found,
        "threshold": threshold(plan),
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": "user: all words that one device names added or removed",
        "trust_model": "central: whoever runs this sees the words of every device before the release",
    }
    if deliver(document, as_json, output, ascii_only=False):
        return
    show("New words", ("word", "devices, noised"), list(found.items()))
    typer.echo(f"named by about {threshold(plan)} devices or more; epsilon {epsilon:g}, delta {delta:g}")
    for key in ("adjacency", "trust_model"):
        typer.echo(f"{key.replace('_', ' ')}: {document[key]}")


def _plan(max_words: int, epsilon: float, delta: float) -> WordPlan:
    """Raises PrivacyError naming the option that is impossible."""
    from pydantic import ValidationError

    from device_sdk.wire.messages import WordPlan

    try:
        return WordPlan(max_words=max_words, epsilon=epsilon, delta=delta)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise PrivacyError(f"--{name}: found {first['input']!r}: {first['msg']}") from error


def _read(source: Path) -> list[frozenset[str]]:
    """One set of words for each line. Raises DataError naming the line, never what is in it."""
    try:
        lines = source.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: cannot be read ({type(error).__name__}); expected JSON lines in UTF-8") from None
    sets = []
    for number, line in enumerate(lines, 1):
        try:
            named: Any = json.loads(line)
        except ValueError:
            named = None
        if not isinstance(named, list) or not all(isinstance(word, str) for word in named):
            raise DataError(f"{source}: line {number}: expected a JSON list of words")
        sets.append(frozenset(named))
    return sets
