"""``idiolect privacy``: what the releases so far tell about a user."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from server.commands import privacy_table
from server.commands.operators import Answer, command, show
from server.operator_client import OperatorClient

__all__ = ["app"]

app = typer.Typer(help="Read the privacy ledger.", no_args_is_help=True)


privacy_table.register(app)


@app.callback()
def privacy() -> None:
    """Read the privacy ledger."""


@command(app, "ledger")
def ledger(
    client: OperatorClient,
    devices: Annotated[bool, typer.Option("--devices", help="One line per device too.")] = False,
) -> Answer:
    """Epsilon per stream, with what it means. No single number stands for both streams."""
    found = client.get("privacy")
    return found, lambda: _show(found, devices)


def _show(found: dict[str, Any], devices: bool) -> None:
    for stream, line in found["streams"].items():
        facts = [
            ("epsilon", _number(line["epsilon"])),
            ("delta", _number(line["delta"])),
            ("cap", _number(found["caps"][stream])),
            ("rounds", line["rounds"]),
            ("devices", line["devices"]),
            ("adjacency", line["adjacency"]),
            ("sampling", line["sampling"]),
            ("trust", line["trust_model"]),
        ]
        show(f"Stream {stream}", ("", ""), facts)
    if devices:
        rows = [
            (line["device_id"], line["stream"], _number(line["epsilon"]), _number(line["delta"]), line["rounds"])
            for line in found["devices"]
        ]
        show("Devices", ("device", "stream", "epsilon", "delta", "rounds"), rows)


def _number(value: float | str) -> str:
    return "infinite" if value == "Infinity" else f"{float(value):.4g}"
