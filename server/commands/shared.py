"""What the operators' commands share: options for the server, its token and the output; tables."""

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeAlias

import typer
from pydantic import BaseModel

from device_sdk.commands.output import AsJson, Output, deliver, print_table
from device_sdk.commands.secrets import keep_from_process_list
from server.operators.client import OperatorClient

SERVER = "http://127.0.0.1:8470"
Answer: TypeAlias = tuple[dict[str, Any] | BaseModel, Callable[[], None]]
"""What the server said, for --json and --output, and a function that prints it for people."""


def _shared(
    *,
    server: Annotated[str, typer.Option(envvar="IDIOLECT_SERVER", help="The server's address.")] = SERVER,
    token: Annotated[
        str, typer.Option(envvar="IDIOLECT_OPERATOR_TOKEN", help="The operator token.", show_default=False)
    ] = "",
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Options that every operators' command has."""


def command(app: typer.Typer, name: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Adds a command to ``app``. Its function takes an :class:`OperatorClient` first, then its own arguments and
    options; ``--server``, ``--token``, ``--json`` and ``--output`` are added to them."""

    def add(function: Callable[..., Answer]) -> Callable[..., Answer]:
        def run(**options: Any) -> None:
            server, token, as_json, output = (options.pop(each.name) for each in shared)
            keep_from_process_list({"--token": ("IDIOLECT_OPERATOR_TOKEN", token)})
            with OperatorClient(server, token) as client:
                found, present = function(client, **options)
            if not deliver(found.model_dump(mode="json") if isinstance(found, BaseModel) else found, as_json, output):
                present()

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = inspect.signature(_shared, eval_str=True).parameters.values()
        # typer reads the options of a command from its signature.
        run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = function.__name__, function.__doc__
        app.command(name)(run)
        return function

    return add


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Callable[[], None]:
    """Prints it when it is called: the second half of an answer."""
    return partial(show, title, columns, rows)


def line(text: str) -> Callable[[], None]:
    """As :func:`table`, of a line of text."""
    return partial(typer.echo, text)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, in which no word is broken."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    print_table(Console(), table)


def moment(seconds: float | None) -> str:
    """A time for people, in the operator's own zone."""
    return "" if seconds is None else datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
