"""``idiolect rounds``: open, close, list and show rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.errors import ConfigurationError
from server.commands.operators import Answer, command, moment, show
from server.operator_client import OperatorClient

__all__ = ["app"]

app = typer.Typer(help="Open, close, list and show rounds.", no_args_is_help=True)


@command(app, "open")
def open_round(
    client: OperatorClient,
    marginals: Annotated[bool, typer.Option(help="Collect word counts.")] = True,
    deltas: Annotated[bool, typer.Option(help="Collect model deltas.")] = False,
    epsilon: Annotated[float, typer.Option(help="Epsilon of the marginals' release.")] = 1.0,
    max_words: Annotated[int, typer.Option(help="Distinct words a device may report.")] = 20,
    clip_norm: Annotated[float, typer.Option(help="L2 bound of a delta.")] = 1.0,
    noise: Annotated[float, typer.Option(help="Gaussian noise each device adds to each value of its delta.")] = 0.0,
    weighting: Annotated[
        str | None, typer.Option(help="Of deltas: utterances or uniform.  [default: uniform with noise]")
    ] = None,
    optimizer: Annotated[str, typer.Option(help="Server optimizer: sgd, momentum or adam.")] = "sgd",
    learning_rate: Annotated[float, typer.Option(help="Of the server optimizer.")] = 1.0,
    goal: Annotated[int | None, typer.Option(help="Reports per stream at which the round closes by itself.")] = None,
    minimum: Annotated[int, typer.Option(help="Fewest reports a stream may release.")] = 1,
    hours: Annotated[float, typer.Option(help="Until the deadline.")] = 24.0,
    smoothing: Annotated[float, typer.Option(help="Weight of the background in the marginals, in words.")] = 100.0,
    planned: Annotated[bool, typer.Option("--planned", help="Create it without opening it.")] = False,
    resume: Annotated[str | None, typer.Option("--planned-round", help="Open this planned round instead.")] = None,
    settings: Annotated[
        Path | None, typer.Option(help="JSON file with the round's settings, instead of the options above.")
    ] = None,
) -> Answer:
    """Create a round and open it on the current model and marginals."""
    if resume is not None:
        return _answer(client.post(f"rounds/{resume}/open"))
    wanted: dict[str, Any] = {
        "marginals": {"epsilon": epsilon, "max_words": max_words} if marginals else None,
        "deltas": {"clip_norm": clip_norm, "noise_stddev": noise} if deltas else None,
        "weighting": weighting or ("uniform" if noise else "utterances"),
        "optimizer": {"kind": optimizer, "learning_rate": learning_rate},
        "goal": goal,
        "minimum": minimum,
        "seconds": hours * 3600,
        "smoothing": smoothing,
    }
    if settings is not None:
        wanted = _read_settings(settings)
    return _answer(client.post("rounds", json={"settings": wanted, "open": not planned}))


@command(app, "close")
def close_round(
    client: OperatorClient,
    round_id: Annotated[str, typer.Argument(help="As `rounds list` shows it.")],
    abandon: Annotated[bool, typer.Option("--abandon", help="Release nothing.")] = False,
) -> Answer:
    """Close a round, aggregate what it holds and publish the result."""
    return _answer(client.post(f"rounds/{round_id}/{'abandon' if abandon else 'close'}"))


@command(app, "list")
def list_rounds(
    client: OperatorClient,
    limit: Annotated[int, typer.Option(help="How many, the newest first.", min=1, max=1000)] = 20,
) -> Answer:
    """List rounds, the newest first."""
    found = client.get("rounds", limit=limit)

    def present() -> None:
        rows = [
            (
                entry["id"],
                entry["state"],
                entry["reports"]["marginals"],
                entry["reports"]["deltas"],
                moment(entry["deadline"]),
                entry["model_version"],
                entry["marginals_version"],
            )
            for entry in found["rounds"]
        ]
        show("Rounds", ("round", "state", "marginals", "deltas", "deadline", "model", "marginals version"), rows)

    return found, present


@command(app, "show")
def show_round(
    client: OperatorClient,
    round_id: Annotated[str, typer.Argument(help="As `rounds list` shows it.")],
) -> Answer:
    """Show one round: its settings, how it moved, what it released."""
    return _answer(client.get(f"rounds/{round_id}"))


def _answer(found: dict[str, Any]) -> Answer:
    return found, lambda: _show(found)


def _show(found: dict[str, Any]) -> None:
    facts = [
        ("state", found["state"]),
        ("base", f"model {found['base_model']}, marginals {found['base_marginals']}"),
        ("reports", ", ".join(f"{stream} {count}" for stream, count in found["reports"].items())),
        ("deadline", moment(found["deadline"])),
        ("new model", found["model_version"]),
        ("new marginals", found["marginals_version"]),
        ("note", found["note"]),
    ]
    facts += [
        (f"release of {stream}", f"{release['reports']} reports, {release['mechanism']['name']}")
        for stream, release in found["releases"].items()
    ]
    facts += [
        (moment(move["at"]), f"{move['source']} to {move['target']}" + (f": {move['note']}" if move["note"] else ""))
        for move in found["transitions"]
    ]
    show(f"Round {found['id']}", ("", ""), facts)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: found {error}, expected a JSON file with a round's settings") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path}: found {type(found).__name__}, expected a JSON object of settings")
    return found
