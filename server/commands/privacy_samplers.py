"""``idiolect privacy audit`` and ``words``: attacks on the samplers, and a private release of new words."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import StrictStr, TypeAdapter, ValidationError

from device_sdk.commands.output import AsJson, Output, deliver
from device_sdk.errors import DataError, PrivacyError
from device_sdk.wire.messages import WordPlan
from server.commands.operators import show

__all__ = ["audit", "words"]


def audit(
    runs: Annotated[int, typer.Option(help="Releases of each sampler, half with the canary.", min=2)] = 1_000_000,
    epsilon: Annotated[float, typer.Option(help="What the samplers claim.", min=0.01)] = 1.0,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.", min=0.5, max=0.999999)] = 0.95,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Attack the samplers with a canary: a lower bound on epsilon for each, beside three that are known to be broken.

    Ends with status 1 if a sampler that ships does not keep its claim, or a broken one is not found.
    """
    from rich.console import Console
    from rich.progress import Progress

    from server.privacy.audit import BROKEN, SHIPPED
    from server.privacy.audit import audit as attack

    findings = []
    with Progress(console=Console(stderr=True), transient=True, disable=as_json or not sys.stderr.isatty()) as bar:
        for name in (*SHIPPED, *BROKEN):
            task = bar.add_task(name, total=runs)
            findings.append(attack(name, runs, epsilon, confidence, partial(bar.advance, task)))
    kept = all(finding.flagged == (finding.sampler in BROKEN) for finding in findings)
    document = {"as_expected": kept, "samplers": [finding.as_json() for finding in findings]}
    if not deliver(document, as_json, output):
        verdicts = {True: "broken, found", False: "keeps its claim, as far as this attack sees"}
        rows = [
            (
                *(finding.sampler, f"{finding.runs:,}", f"{finding.epsilon:g}", f"{finding.delta:g}"),
                *(f"{finding.lower_bound:.3f}", verdicts[finding.flagged], finding.event),
            )
            for finding in findings
        ]
        title = f"Epsilon is at least (with {100 * confidence:g} % confidence)"
        show(title, ("sampler", "runs", "claimed", "delta", "at least", "verdict", "bet"), rows)
    if not kept:
        raise typer.Exit(1)


def words(
    contributions: Annotated[
        Path, typer.Argument(help="JSON lines: a list of words outside the public list, one line for each device.")
    ],
    max_words: Annotated[int, typer.Option(help="Words that a device may name.")] = 5,
    epsilon: Annotated[float, typer.Option(help="Of the release, for one device.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Of the release, for one device.")] = 1e-7,
    bundle: Annotated[Path | None, typer.Option(help="Bundle that holds the public list.  [default: packaged]")] = None,
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Release new words that enough devices named, with (epsilon, delta) for each device; the rest is never shown.

    Every call is a release of its own, and costs that much again: keep what it says.
    """
    from server.privacy.new_words import devices_of, released_words, threshold
    from server.registry.initial import initial_from_bundle

    plan = _plan(max_words, epsilon, delta)
    listed = frozenset(initial_from_bundle(bundle).words)
    release = released_words(devices_of(_read(contributions), listed, plan), plan)
    document = {
        "words": release,
        "threshold": threshold(plan),
        "epsilon": epsilon,
        "delta": delta,
        "adjacency": "user: all words that one device names added or removed",
        "trust_model": "central: whoever runs this sees the words of every device before the release",
    }
    if deliver(document, as_json, output, ascii_only=False):
        return
    show("New words", ("word", "devices, noised"), list(release.items()))
    typer.echo(f"named by about {threshold(plan)} devices or more; epsilon {epsilon:g}, delta {delta:g}")
    for key in ("adjacency", "trust_model"):
        typer.echo(f"{key.replace('_', ' ')}: {document[key]}")


def _plan(max_words: int, epsilon: float, delta: float) -> WordPlan:
    """Raises PrivacyError naming the option that is impossible."""
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
    words, sets = TypeAdapter(frozenset[StrictStr]), []
    for number, line in enumerate(lines, 1):
        try:
            sets.append(words.validate_json(line))
        except ValidationError:
            raise DataError(f"{source}: line {number}: expected a JSON list of words") from None
    return sets
