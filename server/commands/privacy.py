"""``idiolect privacy``: what the releases so far tell about a user."""

from __future__ import annotations

from typing import Annotated

import typer

from server.commands.operator_client import (
    DEFAULT_SERVER,
    JsonOption,
    OperatorClient,
    OutputOption,
    ServerOption,
    TokenOption,
    report,
    show,
)

__all__ = ["app"]

app = typer.Typer(help="Read the privacy ledger.", no_args_is_help=True)


@app.callback()
def privacy() -> None:
    """Read the privacy ledger."""


@app.command("ledger")
def ledger(
    devices: Annotated[bool, typer.Option("--devices", help="One line per device too.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    token: TokenOption = "",
    as_json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Epsilon per stream, with what it means. No single number stands for both streams."""
    found = OperatorClient(server, token).get("privacy")
    if not report(found, as_json, output):
        return
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
