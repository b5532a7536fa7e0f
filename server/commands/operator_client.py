"""What the operators' commands share: the server's address and token, requests, tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from device_sdk.errors import CheckInError, DataError

__all__ = [
    "DEFAULT_SERVER",
    "JsonOption",
    "OperatorClient",
    "OutputOption",
    "ServerOption",
    "TokenOption",
    "moment",
    "report",
    "show",
]

ServerOption = Annotated[str, typer.Option("--server", envvar="IDIOLECT_SERVER", help="The server's address.")]
TokenOption = Annotated[
    str, typer.Option("--token", envvar="IDIOLECT_OPERATOR_TOKEN", help="The operator token.", show_default=False)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON to standard output.")]
OutputOption = Annotated[Path | None, typer.Option("--output", help="Write the JSON to a file.")]

DEFAULT_SERVER = "http://127.0.0.1:8470"


class OperatorClient:
    """Requests to one server with the operator token. Raises CheckInError when it is out of reach or refuses."""

    def __init__(self, server: str, token: str) -> None:
        self.server = server.rstrip("/")
        self.token = token

    def get(self, path: str, **parameters: Any) -> dict[str, Any]:
        return self._send("GET", path, params=parameters)

    def post(self, path: str, **content: Any) -> dict[str, Any]:
        """content: httpx's json, content or params."""
        return self._send("POST", path, **content)

    def _send(self, method: str, path: str, **content: Any) -> dict[str, Any]:
        import httpx

        url = f"{self.server}/v1/operator/{path}"
        if not self.token:
            raise CheckInError("no operator token; give --token or set IDIOLECT_OPERATOR_TOKEN")
        try:
            headers = {"Authorization": f"Bearer {self.token}"}
            # Closing a round answers when its result is published, which may take minutes for a large model.
            answer = httpx.request(method, url, headers=headers, timeout=600.0, **content)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise CheckInError(f"{url}: cannot be reached ({error}); is the server running?") from error
        try:
            found = answer.json()
        except ValueError as error:
            raise CheckInError(f"{url}: found status {answer.status_code} without JSON; is this the server?") from error
        if answer.is_error or not isinstance(found, dict):
            detail = found.get("detail", "") if isinstance(found, dict) else ""
            raise CheckInError(f"{url}: refused with status {answer.status_code}: {detail}")
        return found


def report(content: Any, as_json: bool, output: Path | None) -> bool:
    """Print and write JSON where asked. Returns whether a table should still be shown."""
    text = json.dumps(content, indent=2)
    if output is not None:
        try:
            output.write_text(text + "\n")
        except OSError as error:
            raise DataError(f"{output}: cannot be written ({error.strerror})") from error
    if as_json:
        typer.echo(text)
    return not as_json


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    Console().print(table)


def moment(seconds: float | None) -> str:
    """A time for people, in the operator's own zone."""
    return "" if seconds is None else datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
