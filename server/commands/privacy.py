"""``idiolect privacy``: what the releases so far tell about a user, what a plan costs, what the samplers keep."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from server.commands import privacy_audit, privacy_table, privacy_words
from server.commands.operators import Answer, command, show
from server.operators.client import OperatorClient

__all__ = ["app"]

app = typer.Typer(help="Read the privacy ledger, plan its cost, audit the samplers.", no_args_is_help=True)


privacy_table.register(app)
privacy_audit.register(app)
privacy_words.register(app)


@app.callback()
def privacy() -> None:
    """Read the privacy ledger, plan its cost, audit the samplers."""


@command(app, "ledger")
def ledger(
    client: OperatorClient,
    devices: Annotated[bool, typer.Option("--devices", help="One line per device too.")] = False,
) -> Answer:
    """Epsilon per stream, of a user and of an utterance, with what it means. No number stands for all streams."""
    found = client.get("privacy")
    return found, lambda: _show(found, devices)


def _show(found: dict[str, Any], devices: bool) -> None:
    for stream, line in found["streams"].items():
        facts = [
            ("epsilon of a user", _level(line["epsilon"], line["delta"])),
            ("epsilon of an utterance", _level(line["utterance_epsilon"], line["utterance_delta"])),
            *([("epsilon of one count", _number(line["count_epsilon"]))] if line["count_epsilon"] is not None else []),
            ("cap", _number(found["caps"][stream])),
            ("rounds", line["rounds"]),
            ("devices", line["devices"]),
            ("adjacency", line["adjacency"]),
            ("", line["utterance_adjacency"]),
            ("sampling", line["sampling"]),
            ("trust", line["trust_model"]),
        ]
        show(f"Stream {stream}", ("", ""), facts)
    if devices:
        rows = [
            (
                line["device_id"],
                line["stream"],
                _level(line["epsilon"], line["delta"]),
                _level(line["utterance_epsilon"], line["utterance_delta"]),
                line["rounds"],
            )
            for line in found["devices"]
        ]
        show("Devices", ("device", "stream", "user", "utterance", "rounds"), rows)


def _level(epsilon: float | str, delta: float | str) -> str:
    return f"{_number(epsilon)} at delta {_number(delta)}" if float(delta) else _number(epsilon)


def _number(value: float | str) -> str:
    return "infinite" if value == "Infinity" else f"{float(value):.4g}"
